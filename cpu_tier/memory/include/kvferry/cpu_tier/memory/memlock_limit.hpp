// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvferry::cpu_tier {

/// Bytes that this process is allowed to lock (RLIMIT_MEMLOCK, `ulimit -l`); nothing if there is no
/// limit.
[[nodiscard]] std::optional<std::uint64_t> memlock_limit_bytes();

/// A warning to the user before `bytes` are registered with a device; nothing if the limit allows
/// them. It is not an error, because the vendors' drivers ignore the limit; only a driver that
/// obeys it would refuse.
[[nodiscard]] std::optional<std::string> memlock_warning(
    std::uint64_t bytes, std::optional<std::uint64_t> limit_bytes = memlock_limit_bytes());

}  // namespace kvferry::cpu_tier
