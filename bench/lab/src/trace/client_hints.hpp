// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/trace.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

namespace kvferry::bench::trace {

/// The hints of clients about the blocks of a request, when it ends.
enum class HintStyle : std::uint8_t {
  kNone,
  kRight,   ///< Retain them if the conversation continues, until it does; else demote them.
  kWrong,   ///< The reverse; what is retained is retained for ever.
  kRandom,  ///< For any request retain, demote or nothing, for a random time.
  kRetain,  ///< Retain everything for ever.
  kDemote   ///< Demote everything.
};
/// Reads "none", "right", "wrong", "random", "retain", "demote". For other names it throws a
/// ConfigError that lists these.
[[nodiscard]] HintStyle hint_style_from(std::string_view text);
[[nodiscard]] const char* to_string(HintStyle style);

enum class Hint : std::uint8_t { kNothing, kRetain, kDemote };

/// Makes the hints of a trace's clients. A conversation continues if its last block is requested
/// again.
class ClientHints {
 public:
  ClientHints(const Trace& trace, HintStyle style);

  [[nodiscard]] Hint after(std::size_t request);
  /// For how many requests the blocks of this request are retained, if its conversation does not
  /// continue earlier.
  [[nodiscard]] std::size_t time_to_live();

 private:
  HintStyle style_;
  std::mt19937_64 random_{1};
  std::vector<bool> goes_on_;  ///< By request.
};

}  // namespace kvferry::bench::trace
