// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory_budget.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMachineRemedy =
    "ask for less (the budget is per node, its ranks share it) or stop other programs";
constexpr const char* kCgroupRemedy =
    "ask for less (the budget is per node, its ranks share it) or raise this limit (docker "
    "--memory, Kubernetes "
    "resources.limits.memory, systemd MemoryMax= and MemoryHigh=)";

/// What cgroup v1 shows where nothing is set: the largest multiple of the page size, whatever that
/// is.
constexpr std::uint64_t kCgroupV1Unlimited = std::uint64_t{1} << 62;

/// The files of one cgroup version.
struct CgroupFiles {
  std::vector<const char*> limits;
  const char* usage;
  const char* reclaimable;  ///< Field of memory.stat.
};

/// The number at the start of `text`; nothing if there is none ("max").
std::optional<std::uint64_t> to_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> read_number(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line)) return std::nullopt;
  return to_number(line);
}

/// The number behind `name` in a file of "name number" lines.
std::optional<std::uint64_t> read_field(const fs::path& file, std::string_view name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const std::string_view text(line);
    if (text.starts_with(name)) {
      if (const auto number = to_number(text.substr(name.size()))) return number;
    }
  }
  return std::nullopt;
}

/// Adds the limits of one cgroup. Inactive page cache is room: the kernel drops it before it fails
/// an allocation (the "working set" by which Kubernetes evicts, too).
void add_level(const fs::path& level, const CgroupFiles& files, std::vector<MemoryLimit>& limits) {
  const std::uint64_t usage = read_number(level / files.usage).value_or(0);
  const std::uint64_t reclaimable =
      read_field(level / "memory.stat", files.reclaimable).value_or(0);
  const std::uint64_t held = usage - std::min(usage, reclaimable);
  for (const char* name : files.limits) {
    const auto limit = read_number(level / name);
    if (!limit || *limit >= kCgroupV1Unlimited) continue;
    limits.push_back(MemoryLimit{std::string("cgroup ") + name + " of " + level.string(),
                                 *limit - std::min(*limit, held), kCgroupRemedy});
  }
}

/// Adds the limits from the cgroup `path` of the hierarchy mounted at `mount` up to its root.
/// Levels that cannot be seen from here have no files; in a container without a cgroup namespace
/// its own limits are those of the root.
void add_levels(const fs::path& mount, const fs::path& path, const CgroupFiles& files,
                std::vector<MemoryLimit>& limits) {
  fs::path relative = path.relative_path();
  // "/../x": the process was moved out of the cgroup namespace that it sees.
  if (std::find(relative.begin(), relative.end(), "..") != relative.end()) relative.clear();
  for (; !relative.empty(); relative = relative.parent_path()) {
    add_level(mount / relative, files, limits);
  }
  add_level(mount, files, limits);
}

bool names_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "memory") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

std::string with_gib(std::uint64_t bytes) {
  char gib[32];
  std::snprintf(gib, sizeof gib, "%.2f", static_cast<double>(bytes) / (1 << 30));
  return std::to_string(bytes) + " bytes (" + gib + " GiB)";
}

}  // namespace

std::vector<MemoryLimit> read_memory_limits(const MachineRoot& root) {
  std::vector<MemoryLimit> limits;
  if (const auto kib = read_field(root.proc / "meminfo", "MemAvailable:")) {
    limits.push_back(MemoryLimit{"MemAvailable", *kib * 1024, kMachineRemedy});
  }

  const CgroupFiles v1{{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file "};
  const CgroupFiles v2{{"memory.max", "memory.high"}, "memory.current", "inactive_file "};
  std::error_code unreadable;
  const bool v2_only = fs::exists(root.cgroup / "cgroup.controllers", unreadable);
  std::ifstream stream(root.proc / "self" / "cgroup");
  for (std::string line; std::getline(stream, line);) {
    // "hierarchy:controllers:path"; the path may hold colons.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    if (controllers.empty()) {
      add_levels(v2_only ? root.cgroup : root.cgroup / "unified", path, v2, limits);
    } else if (names_memory(controllers)) {
      add_levels(root.cgroup / "memory", path, v1, limits);
    }
  }
  return limits;
}

void check_memory_budget(std::uint64_t bytes, const MachineRoot& root) {
  const std::vector<MemoryLimit> limits = read_memory_limits(root);
  const auto tightest = std::min_element(
      limits.begin(), limits.end(),
      [](const MemoryLimit& a, const MemoryLimit& b) { return a.room_bytes < b.room_bytes; });
  if (tightest == limits.end() || bytes <= tightest->room_bytes) return;
  throw ResourceError("the CPU tier asks for " + with_gib(bytes) + ", but " + tightest->name +
                      " leaves " + with_gib(tightest->room_bytes) + ": " + tightest->remedy);
}

}  // namespace kvferry::cpu_tier
