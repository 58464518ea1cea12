// SPDX-License-Identifier: Apache-2.0
#include "cgroup_levels.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <system_error>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

/// For "no limit" cgroup v1 shows the largest multiple of the page size, which is at least this.
constexpr std::uint64_t kCgroupV1Unlimited = std::uint64_t{1} << 62;

/// The number at the start of `text`; nothing if there is none ("max").
std::optional<std::uint64_t> to_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

bool names(std::string_view controllers, std::string_view controller) {
  while (!controllers.empty()) {
    const std::size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == controller) return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

/// Adds the cgroups from `path` of the hierarchy mounted at `mount` up to its root.
void add_levels(CgroupVersion version, const fs::path& mount, const fs::path& path,
                std::vector<CgroupLevel>& levels) {
  fs::path relative = path.relative_path();
  // "/../x" means that the process was moved out of the cgroup namespace that it sees.
  if (std::find(relative.begin(), relative.end(), "..") != relative.end()) relative.clear();
  for (; !relative.empty(); relative = relative.parent_path()) {
    levels.push_back({version, mount / relative});
  }
  levels.push_back({version, mount});
}

}  // namespace

std::uint64_t scope_of(const fs::path& level) {
  struct stat status {};
  return ::stat(level.c_str(), &status) == 0 ? status.st_ino : 0;
}

std::optional<std::uint64_t> read_number(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line)) return std::nullopt;
  return to_number(line);
}

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

std::optional<std::uint64_t> read_cgroup_limit(const fs::path& file) {
  const auto limit = read_number(file);
  return limit && *limit < kCgroupV1Unlimited ? limit : std::nullopt;
}

std::vector<CgroupLevel> cgroup_levels(const MachineRoot& root, std::string_view controller) {
  std::vector<CgroupLevel> levels;
  std::error_code unreadable;
  const bool v2_only = fs::exists(root.cgroup / "cgroup.controllers", unreadable);
  std::ifstream stream(root.proc / "self" / "cgroup");
  for (std::string line; std::getline(stream, line);) {
    // The format is "hierarchy:controllers:path"; the path may contain colons.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    if (controllers.empty()) {
      add_levels(CgroupVersion::kV2, v2_only ? root.cgroup : root.cgroup / "unified", path, levels);
    } else if (names(controllers, controller)) {
      add_levels(CgroupVersion::kV1, root.cgroup / controller, path, levels);
    }
  }
  return levels;
}

}  // namespace kvferry::cpu_tier
