// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/tier_layout.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// Reports about shared tiers for people, made without joining the tier.
namespace kvferry::cpu_tier {

/// Number of slots of the divided chunks, by state.
struct SharedSlotCounts {
  std::uint64_t num_free = 0;
  std::uint64_t num_filling = 0;
  std::uint64_t num_readable = 0;
  std::uint64_t num_dying = 0;
  std::uint64_t num_quarantined = 0;
  /// Slots whose bytes were found not to be what was stored. They are not used again.
  std::uint64_t num_withdrawn = 0;
  /// Readable, dying and withdrawn slots that one or more instances lease.
  std::uint64_t num_leased = 0;
  /// Impossible words. The instance that takes their chunk repairs them.
  std::uint64_t num_damaged = 0;
};

struct InstanceReport {
  std::string name;
  std::uint64_t name_space = 0;
  bool is_alive =
      false;  ///< A process of it lives. The next instance that joins cleans up after a dead one.
  std::uint32_t num_chunks = 0;
  std::uint32_t weight = 0;
};

struct TierReport {
  std::filesystem::path path;
  TierShape shape;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t reserved_bytes = 0;  ///< Bytes of the machine's memory that it uses now.
  std::string made_by;
  /// Whether it was made since the last boot; if not, the next instance replaces it.
  bool is_of_this_boot = true;
  std::vector<InstanceReport> instances;
  std::uint32_t num_empty_chunks = 0;   ///< Without an owner and without contents.
  std::uint32_t num_orphan_chunks = 0;  ///< Without an owner, with contents that an instance left.
  SharedSlotCounts slots;
};

/// The current contents of a tier. Other processes can change the figures meanwhile. Takes no lock.
/// Throws ResourceError if there is no such file, and ConfigError if it is not a readable tier.
[[nodiscard]] TierReport inspect_tier(const std::filesystem::path& path,
                                      const std::filesystem::path& proc = "/proc");
/// The tier files directly in that directory that this user can open, by name, of any version.
[[nodiscard]] std::vector<std::filesystem::path> find_tiers(const std::filesystem::path& directory);
/// Removes the file of a tier of any version. Throws ResourceError with the names of the instances
/// if a process has it open, and as inspect_tier().
void remove_tier(const std::filesystem::path& path);

}  // namespace kvferry::cpu_tier
