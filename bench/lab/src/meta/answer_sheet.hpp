// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/verifier.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvferry::bench {

/// Compares a round's answers with the right ones, by the verifier of bytes. Each answer stands for
/// one byte of the round's pattern, and a wrong answer corrupts that byte. So wrong answers are
/// reported like wrong bytes, and tests can cause one in the same way. Used by one thread at a
/// time.
class AnswerSheet {
 public:
  void expect(std::uint64_t found, std::uint64_t expected) {
    differences_.push_back(found == expected ? std::byte{0} : std::byte{0xff});
  }
  /// Ends the round. All answers since the last round are one piece of `what`; the index of its
  /// wrong byte is the number of the wrong answer.
  void hand_in(Verifier& verifier, std::string_view what);

 private:
  std::vector<std::byte> differences_;
};

}  // namespace kvferry::bench
