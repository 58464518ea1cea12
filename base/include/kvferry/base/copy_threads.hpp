// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace kvferry {

/// Processors that this thread may run on: those of its affinity mask, and as many whole ones as
/// the quota of the cgroups at `cgroups` lets the process use. At least 1.
[[nodiscard]] std::uint32_t num_usable_processors(
    const std::filesystem::path& cgroups = "/sys/fs/cgroup");

/// Threads that copy together: the usable processors, up to 16 (more do not get more of a socket's
/// memory). At least 1.
[[nodiscard]] std::uint32_t num_copy_threads();

}  // namespace kvferry
