// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::connector {

/// What a client says of the blocks of a session. (A session without a name is one request.)
enum class HintAction : std::uint8_t {
  kRetain,   ///< They will be asked for: they are promised until `time_to_live` after the request.
  kRelease,  ///< They are promised no longer.
  kDemote,   ///< They will not be asked for: they are promised no longer, and leave early.
  kPrefetch  ///< They will be asked for soon: they are promised from now on.
};
inline constexpr std::size_t kNumHintActions = 4;
/// Their names, in the order of the enumerators.
inline constexpr std::array kHintNames{"retain", "release", "demote", "prefetch"};
/// Throws ConfigError that lists the names.
[[nodiscard]] HintAction hint_action_from(std::string_view name);

struct ClientHint {
  HintAction action = HintAction::kRetain;
  /// Of a promise: kRetain and kPrefetch.
  std::chrono::nanoseconds time_to_live{0};
  /// Whose blocks; empty: those of the request that it came with, and of its session.
  std::string session = {};
};

}  // namespace kvferry::connector
