// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {

/// One of this machine's limits on host memory, as it is now.
struct MemoryLimit {
  std::string name;  ///< e.g. "MemAvailable" or "cgroup memory.max of /sys/fs/cgroup/a".
  std::uint64_t room_bytes = 0;  ///< Bytes that can still be taken under it.
  std::string remedy;            ///< How to raise it: a command or an instruction.
  /// The id by which processes refer to it in their claims (memory_claim.hpp); 0: claims do not
  /// count against it.
  std::uint64_t scope = 0;
};

/// Where the figures are read. Tests use their own directory.
struct MachineRoot {
  std::filesystem::path proc = "/proc";
  std::filesystem::path cgroup = "/sys/fs/cgroup";
  /// Where processes publish what they were granted: a tmpfs that they share.
  std::filesystem::path claims = "/dev/shm";
};

/// All limits that apply to this process: MemAvailable; every level of cgroup v2 (memory.max,
/// memory.high) and v1 (memory.limit_in_bytes) from the process's own cgroup up to the root. Files
/// that are missing or contain "max" are no limit. The room of a cgroup is its limit minus its
/// usage; inactive page cache (inactive_file of memory.stat) does not count as used.
[[nodiscard]] std::vector<MemoryLimit> read_memory_limits(const MachineRoot& root = {});

/// Bytes that can still be taken under the tightest limit; the maximum value if there is no limit.
[[nodiscard]] std::uint64_t room_bytes(const std::vector<MemoryLimit>& limits);

/// An error text if `bytes` exceeds the tightest limit: the request (`asks` and the bytes), the
/// limit, its room and the remedy. Nothing if it does not.
[[nodiscard]] std::optional<std::string> shortage_text(
    std::uint64_t bytes, const std::vector<MemoryLimit>& limits,
    const std::string& asks = "the CPU tier asks for");
/// Throws ResourceError with shortage_text() if there is a shortage. Touches no memory.
void check_limits(std::uint64_t bytes, const std::vector<MemoryLimit>& limits);
/// Against read_memory_limits().
void check_memory_budget(std::uint64_t bytes, const MachineRoot& root = {});

}  // namespace kvferry::cpu_tier
