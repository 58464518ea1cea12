// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include "kvferry/base/error.hpp"

#include "cgroup_levels.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace kvferry::cpu_tier {
namespace {

constexpr const char* kMachineRemedy =
    "ask for less (the budget is per node, and its ranks share it) or stop other programs";
constexpr const char* kCgroupRemedy =
    "ask for less (the budget is per node, and its ranks share it) or raise this limit (docker "
    "--memory, Kubernetes "
    "resources.limits.memory, systemd MemoryMax= and MemoryHigh=)";

/// No cgroup has this number.
constexpr std::uint64_t kMachineScope = std::numeric_limits<std::uint64_t>::max();

/// The files of one cgroup version.
struct CgroupFiles {
  std::vector<const char*> limits;
  const char* usage;
  const char* reclaimable;  ///< Field of memory.stat.
};

/// Adds the limits of one cgroup. Inactive page cache counts as room, because the kernel drops it
/// before an allocation fails (Kubernetes evicts by this "working set", too).
void add_level(const std::filesystem::path& level, const CgroupFiles& files,
               std::vector<MemoryLimit>& limits) {
  const std::uint64_t usage = read_number(level / files.usage).value_or(0);
  const std::uint64_t reclaimable =
      read_field(level / "memory.stat", files.reclaimable).value_or(0);
  const std::uint64_t held = usage - std::min(usage, reclaimable);
  for (const char* name : files.limits) {
    const auto limit = read_cgroup_limit(level / name);
    if (!limit) continue;
    limits.push_back(MemoryLimit{std::string("cgroup ") + name + " of " + level.string(),
                                 *limit - std::min(*limit, held), kCgroupRemedy, scope_of(level)});
  }
}

std::string with_gib(std::uint64_t bytes) {
  char gib[32];
  std::snprintf(gib, sizeof gib, "%.2f", static_cast<double>(bytes) / (1 << 30));
  return std::to_string(bytes) + " bytes (" + gib + " GiB)";
}

const MemoryLimit* tightest(const std::vector<MemoryLimit>& limits) {
  const auto least = std::min_element(
      limits.begin(), limits.end(),
      [](const MemoryLimit& a, const MemoryLimit& b) { return a.room_bytes < b.room_bytes; });
  return least == limits.end() ? nullptr : &*least;
}

}  // namespace

std::vector<MemoryLimit> read_memory_limits(const MachineRoot& root) {
  std::vector<MemoryLimit> limits;
  if (const auto kib = read_field(root.proc / "meminfo", "MemAvailable:")) {
    limits.push_back(MemoryLimit{"MemAvailable", *kib * 1024, kMachineRemedy, kMachineScope});
  }
  const CgroupFiles v1{{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file "};
  const CgroupFiles v2{{"memory.max", "memory.high"}, "memory.current", "inactive_file "};
  for (const CgroupLevel& level : cgroup_levels(root, "memory")) {
    add_level(level.directory, level.version == CgroupVersion::kV1 ? v1 : v2, limits);
  }
  return limits;
}

std::uint64_t room_bytes(const std::vector<MemoryLimit>& limits) {
  const MemoryLimit* const least = tightest(limits);
  return least != nullptr ? least->room_bytes : std::numeric_limits<std::uint64_t>::max();
}

std::optional<std::string> shortage_text(std::uint64_t bytes,
                                         const std::vector<MemoryLimit>& limits,
                                         const std::string& asks) {
  const MemoryLimit* const least = tightest(limits);
  if (least == nullptr || bytes <= least->room_bytes) return std::nullopt;
  return asks + " " + with_gib(bytes) + ", but " + least->name + " leaves " +
         with_gib(least->room_bytes) + ": " + least->remedy;
}

void check_limits(std::uint64_t bytes, const std::vector<MemoryLimit>& limits) {
  if (const auto shortage = shortage_text(bytes, limits)) throw ResourceError(*shortage);
}

void check_memory_budget(std::uint64_t bytes, const MachineRoot& root) {
  check_limits(bytes, read_memory_limits(root));
}

}  // namespace kvferry::cpu_tier
