// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/verifier.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvferry::bench {

/// Holds a round's answers, which are no bytes of anything, against what they should be, by the
/// verifier of bytes: each answer is one byte of the round's pattern, which a wrong one spoils. So
/// a wrong answer is reported, and spoilt for a test, as a wrong byte is. One thread at a time.
class AnswerSheet {
 public:
  void expect(std::uint64_t found, std::uint64_t expected) {
    differences_.push_back(found == expected ? std::byte{0} : std::byte{0xff});
  }
  /// Ends the round: all answers given since the last one, as one piece of `what`, whose wrong byte
  /// is the number of the wrong answer.
  void hand_in(Verifier& verifier, std::string_view what);

 private:
  std::vector<std::byte> differences_;
};

}  // namespace kvferry::bench
