// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

/// Where this process stands in the control groups, and how their files are read.
namespace kvferry::cpu_tier {

enum class CgroupVersion : std::uint8_t { kV1, kV2 };

struct CgroupLevel {
  CgroupVersion version = CgroupVersion::kV2;
  std::filesystem::path directory;
};

/// The cgroups of this process from its own up to the root, in every hierarchy that may limit
/// `controller` ("memory"). Levels that cannot be seen from here have no files; in a container
/// without a cgroup namespace its own limits are those of the root.
[[nodiscard]] std::vector<CgroupLevel> cgroup_levels(const MachineRoot& root,
                                                     std::string_view controller);

/// The directory's number, which the cgroup has in all mounts and namespaces; 0 if there is none.
[[nodiscard]] std::uint64_t scope_of(const std::filesystem::path& level);

/// The number at the start of a file; nothing if there is none ("max", no file).
[[nodiscard]] std::optional<std::uint64_t> read_number(const std::filesystem::path& file);
/// The number behind `name` in a file of "name number" lines.
[[nodiscard]] std::optional<std::uint64_t> read_field(const std::filesystem::path& file,
                                                      std::string_view name);
/// The limit in a cgroup's file; nothing if it is none.
[[nodiscard]] std::optional<std::uint64_t> read_cgroup_limit(const std::filesystem::path& file);

}  // namespace kvferry::cpu_tier
