// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::connector {

/// What a client says about the blocks of a session. A session without a name is one request.
enum class HintAction : std::uint8_t {
  kRetain,   ///< They will be needed again: they are promised until `time_to_live` after the
             ///< request.
  kRelease,  ///< They are no longer promised.
  kDemote,   ///< They will not be needed: they are no longer promised, and are evicted early.
  kPrefetch  ///< They will be needed soon: they are promised from now on.
};
inline constexpr std::size_t kNumHintActions = 4;
/// The names of the actions, in the order of the enumerators.
inline constexpr std::array kHintNames{"retain", "release", "demote", "prefetch"};
/// Throws ConfigError, which lists the names.
[[nodiscard]] HintAction hint_action_from(std::string_view name);

struct ClientHint {
  HintAction action = HintAction::kRetain;
  /// How long a promise lasts (kRetain and kPrefetch).
  std::chrono::nanoseconds time_to_live{0};
  /// The session that owns the blocks; empty: the request of this hint, and its session.
  std::string session = {};
};

}  // namespace kvferry::connector
