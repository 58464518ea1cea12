// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {

/// One limit of this machine on more host memory, as it stands now.
struct MemoryLimit {
  std::string name;  ///< e.g. "MemAvailable" or "cgroup memory.max of /sys/fs/cgroup/a".
  std::uint64_t room_bytes = 0;  ///< What may still be taken under it.
  std::string remedy;            ///< What lifts it, as a command or an instruction.
};

/// Where the figures are read from; tests point it at a directory of their own.
struct MachineRoot {
  std::filesystem::path proc = "/proc";
  std::filesystem::path cgroup = "/sys/fs/cgroup";
};

/// All limits that apply to this process: MemAvailable; every level of cgroup v2 (memory.max,
/// memory.high) and v1 (memory.limit_in_bytes) from the process's own cgroup up to the root. Files
/// that are missing or say "max" limit nothing. The room of a cgroup is its limit less its usage,
/// where inactive page cache (inactive_file of memory.stat) is not counted as used.
[[nodiscard]] std::vector<MemoryLimit> read_memory_limits(const MachineRoot& root = {});

/// Throws ResourceError if `bytes` exceeds the tightest limit. The message names the limit, its
/// room, the request and the remedy. Nothing is touched.
void check_memory_budget(std::uint64_t bytes, const MachineRoot& root = {});

}  // namespace kvferry::cpu_tier
