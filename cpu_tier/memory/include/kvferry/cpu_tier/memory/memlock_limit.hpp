// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvferry::cpu_tier {

/// Bytes that this process may lock (RLIMIT_MEMLOCK, `ulimit -l`); nothing if it is unlimited.
[[nodiscard]] std::optional<std::uint64_t> memlock_limit_bytes();

/// What a user is to know before `bytes` are registered with a device; nothing if the limit allows
/// them. No error: the vendors' drivers pin pages past the limit, and only a driver that does not
/// would refuse.
[[nodiscard]] std::optional<std::string> memlock_warning(
    std::uint64_t bytes, std::optional<std::uint64_t> limit_bytes = memlock_limit_bytes());

}  // namespace kvferry::cpu_tier
