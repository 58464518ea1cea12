// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/tier_layout.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// Shared tiers as people look at them: from beside, without joining.
namespace kvferry::cpu_tier {

/// Slots of the chunks that are divided, by state.
struct SharedSlotCounts {
  std::uint64_t num_free = 0;
  std::uint64_t num_filling = 0;
  std::uint64_t num_readable = 0;
  std::uint64_t num_dying = 0;
  std::uint64_t num_quarantined = 0;
  /// By one instance or more, of the readable and dying ones.
  std::uint64_t num_leased = 0;
  /// Words that cannot be: put in order by the instance that takes their chunk.
  std::uint64_t num_damaged = 0;
};

struct InstanceReport {
  std::string name;
  std::uint64_t name_space = 0;
  bool is_alive = false;  ///< A process of it is. A dead one is swept when the next joins.
  std::uint32_t num_chunks = 0;
  std::uint32_t weight = 0;
};

struct TierReport {
  std::filesystem::path path;
  TierShape shape;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t reserved_bytes = 0;  ///< What it takes of the machine's memory now.
  std::string made_by;
  /// Whether it is of the machine's present run; if not, the next instance replaces it.
  bool is_of_this_boot = true;
  std::vector<InstanceReport> instances;
  std::uint32_t num_empty_chunks = 0;   ///< Without an owner, and nothing is in them.
  std::uint32_t num_orphan_chunks = 0;  ///< Without an owner, and what an instance left is in them.
  SharedSlotCounts slots;
};

/// What is in it now: figures of a moment that others change meanwhile. Takes no lock. Throws
/// ResourceError if there is no such file, and ConfigError if it is no tier that can be read.
[[nodiscard]] TierReport inspect_tier(const std::filesystem::path& path,
                                      const std::filesystem::path& proc = "/proc");
/// The files of tiers right in that directory that this user can open, by name; of any version.
[[nodiscard]] std::vector<std::filesystem::path> find_tiers(const std::filesystem::path& directory);
/// Removes the file of a tier of any version. Throws ResourceError naming the instances if a
/// process has it open, and as inspect_tier().
void remove_tier(const std::filesystem::path& path);

}  // namespace kvferry::cpu_tier
