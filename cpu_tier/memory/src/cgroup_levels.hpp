// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

/// The place of this process in the control groups, and functions that read their files.
namespace kvferry::cpu_tier {

enum class CgroupVersion : std::uint8_t { kV1, kV2 };

struct CgroupLevel {
  CgroupVersion version = CgroupVersion::kV2;
  std::filesystem::path directory;
};

/// The cgroups of this process from its own up to the root, in every hierarchy that can limit
/// `controller` ("memory"). Levels that are not visible from here have no files. In a container
/// without a cgroup namespace, the container's own limits are at the root.
[[nodiscard]] std::vector<CgroupLevel> cgroup_levels(const MachineRoot& root,
                                                     std::string_view controller);

/// The number of the directory. The cgroup has it in all mounts and namespaces; 0 if there is none.
[[nodiscard]] std::uint64_t scope_of(const std::filesystem::path& level);

/// The number at the start of a file; nothing if there is none ("max", no file).
[[nodiscard]] std::optional<std::uint64_t> read_number(const std::filesystem::path& file);
/// The number after `name` in a file of "name number" lines.
[[nodiscard]] std::optional<std::uint64_t> read_field(const std::filesystem::path& file,
                                                      std::string_view name);
/// The limit in a cgroup's file; nothing if the file sets no limit.
[[nodiscard]] std::optional<std::uint64_t> read_cgroup_limit(const std::filesystem::path& file);

}  // namespace kvferry::cpu_tier
