// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "block_groups.hpp"
#include "request_table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::connector {

/// What the tier holds of a request's prefix. It leases nothing: a later lease from it fails if the
/// tier does not hold the blocks any more.
struct LookupAnswer {
  std::uint64_t eviction_epoch = 0;  ///< The tier's epoch at the time of the answer.
  std::uint32_t first = 0;           ///< The engine itself has all before this position.
  std::uint32_t limit = 0;           ///< The position that the question asked for.
  /// The position up to which every KV cache group can have the rest loaded; `first` if there is
  /// nothing to load.
  std::uint32_t end = 0;
  /// The same for the groups that need all blocks. The other groups may lack blocks for it.
  std::uint32_t full_end = 0;
  /// The block that the tier lacks for more, if it lacks one: that which was missed last.
  struct Missing {
    GroupId group;
    std::uint32_t block = 0;
  };
  std::optional<Missing> missing;
  /// By group: what a load of [first, end) needs (BlockGroups::needed()), possibly with more after
  /// it.
  std::vector<cpu_tier::PrefixHit> hits;

  [[nodiscard]] bool is_hit() const { return end > first; }
  /// The end of a prefix that requests share, and that could be loaded if the blocks before its end
  /// were kept in every group; 0: there is none.
  [[nodiscard]] std::uint32_t junction() const { return full_end > end ? full_end : 0; }
};

/// The blocks of one slab class that a load fills, and the lease on the slots that it reads.
struct LeasedBlocks {
  ClassBlocks to;
  cpu_tier::Lease lease;
};
/// What is loaded for a request in all groups: one entry for each slab class.
using LeasedPrefix = std::vector<LeasedBlocks>;

/// Finds the prefix that every KV cache group can serve. Full attention needs all blocks of it, a
/// sliding window or a chunk needs those that its end reaches back to, recurrent state needs the
/// last one. The part that the engine itself has counts for every group. It keeps nothing: Lookups
/// keeps the answers.
class PrefixSearch {
 public:
  PrefixSearch(cpu_tier::Tier& tier, const BlockGroups& groups) : tier_(tier), groups_(groups) {}

  /// Searches between the positions `first` and `limit`, which the keys cover. `known` is an
  /// earlier answer for the same keys and `first`, or an empty one.
  [[nodiscard]] LookupAnswer find(const GroupKeys& keys, std::uint32_t first, std::uint32_t limit,
                                  LookupAnswer known = {}) const;
  /// Leases what the answer has up to position `end`, for the blocks of `tables`. Returns nothing,
  /// and leases nothing, if the answer is no longer valid or the tables do not fit it.
  [[nodiscard]] std::optional<LeasedPrefix> lease(
      const GroupKeys& keys, const LookupAnswer& answer, std::uint32_t end,
      std::span<const std::span<const BlockId>> tables) const;

  /// A request waits for its turn with these keys, which cover at least `num_hashes` positions. The
  /// blocks that a load of the first `num_hashes` would take, those of the returned answer, are
  /// evicted last until end_await(), or until they are used.
  [[nodiscard]] LookupAnswer await(const GroupKeys& keys, std::uint32_t num_hashes) const;
  /// Ends an await() that found a prefix up to position `end`.
  void end_await(const GroupKeys& keys, std::uint32_t end) const;

 private:
  /// The last position up to `end` at which, for the group, a prefix that begins at `first` can
  /// end. If that is before `end`, `missing` is the block that is missing for a longer one.
  [[nodiscard]] std::uint32_t shorten(const GroupKeys& keys, GroupId group, std::uint32_t first,
                                      std::uint32_t end,
                                      std::optional<LookupAnswer::Missing>& missing) const;
  /// What the tier has of a group's blocks, up to the first missing one.
  [[nodiscard]] cpu_tier::PrefixHit look_up(const GroupKeys& keys, GroupId group,
                                            BlockGroups::Range blocks) const;
  /// Adds what the group needs to `to`; false if it is not available.
  [[nodiscard]] bool lease_group(const GroupKeys& keys, const LookupAnswer& answer, GroupId group,
                                 std::uint32_t end, std::span<const BlockId> table,
                                 LeasedPrefix& to) const;

  cpu_tier::Tier& tier_;
  const BlockGroups& groups_;
};

}  // namespace kvferry::connector
