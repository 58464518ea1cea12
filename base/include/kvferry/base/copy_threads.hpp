// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace kvferry {

/// Number of processors that this thread can use: those of its affinity mask, but no more whole
/// processors than the quota of the cgroups at `cgroups` allows. At least 1.
[[nodiscard]] std::uint32_t num_usable_processors(
    const std::filesystem::path& cgroups = "/sys/fs/cgroup");

/// Number of threads that copy together: the usable processors, up to 16 (more threads do not get
/// more memory bandwidth from a socket). At least 1.
[[nodiscard]] std::uint32_t num_copy_threads();

}  // namespace kvferry
