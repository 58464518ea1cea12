// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/trace.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

namespace kvferry::bench::trace {

/// What clients say of the blocks of a request, when it ends.
enum class HintStyle : std::uint8_t {
  kNone,
  kRight,   ///< To retain them if the conversation goes on, until it does; else to demote them.
  kWrong,   ///< The reverse, and what is retained is so for ever.
  kRandom,  ///< Either, or nothing, of any request, for a random time.
  kRetain,  ///< To retain everything, for ever.
  kDemote   ///< To demote everything.
};
/// "none", "right", "wrong", "random", "retain", "demote". Throws ConfigError that lists them.
[[nodiscard]] HintStyle hint_style_from(std::string_view text);
[[nodiscard]] const char* to_string(HintStyle style);

enum class Hint : std::uint8_t { kNothing, kRetain, kDemote };

/// Makes the hints of a trace's clients. A conversation goes on if its last block is asked for
/// again.
class ClientHints {
 public:
  ClientHints(const Trace& trace, HintStyle style);

  [[nodiscard]] Hint after(std::size_t request);
  /// For how many requests what is retained after this one is so, if its conversation does not go
  /// on earlier.
  [[nodiscard]] std::size_t time_to_live();

 private:
  HintStyle style_;
  std::mt19937_64 random_{1};
  std::vector<bool> goes_on_;  ///< By request.
};

}  // namespace kvferry::bench::trace
