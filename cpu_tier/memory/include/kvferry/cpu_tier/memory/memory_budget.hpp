// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {

/// One limit of this machine on more host memory, as it stands now.
struct MemoryLimit {
  std::string name;  ///< e.g. "MemAvailable" or "cgroup memory.max of /sys/fs/cgroup/a".
  std::uint64_t room_bytes = 0;  ///< What may still be taken under it.
  std::string remedy;            ///< What lifts it, as a command or an instruction.
  /// By which processes name it to each other (memory_claim.hpp); 0: what they claim does not count
  /// against it.
  std::uint64_t scope = 0;
};

/// Where the figures are read from; tests point it at a directory of their own.
struct MachineRoot {
  std::filesystem::path proc = "/proc";
  std::filesystem::path cgroup = "/sys/fs/cgroup";
  /// Where processes tell each other what they were granted: a tmpfs that they share.
  std::filesystem::path claims = "/dev/shm";
};

/// All limits that apply to this process: MemAvailable; every level of cgroup v2 (memory.max,
/// memory.high) and v1 (memory.limit_in_bytes) from the process's own cgroup up to the root. Files
/// that are missing or say "max" limit nothing. The room of a cgroup is its limit less its usage,
/// where inactive page cache (inactive_file of memory.stat) is not counted as used.
[[nodiscard]] std::vector<MemoryLimit> read_memory_limits(const MachineRoot& root = {});

/// What may still be taken under the tightest of them; all there is if there is none.
[[nodiscard]] std::uint64_t room_bytes(const std::vector<MemoryLimit>& limits);

/// What is wrong if `bytes` exceeds the tightest of them: the request (`asks` and the bytes), the
/// limit, its room and the remedy; nothing if it does not.
[[nodiscard]] std::optional<std::string> shortage_text(
    std::uint64_t bytes, const std::vector<MemoryLimit>& limits,
    const std::string& asks = "the CPU tier asks for");
/// Throws ResourceError with shortage_text(). Nothing is touched.
void check_limits(std::uint64_t bytes, const std::vector<MemoryLimit>& limits);
/// Against read_memory_limits().
void check_memory_budget(std::uint64_t bytes, const MachineRoot& root = {});

}  // namespace kvferry::cpu_tier
