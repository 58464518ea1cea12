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

/// What the tier holds of a request's prefix. It is soft: it holds nothing, and says so when it is
/// leased from and does not hold any more.
struct LookupAnswer {
  std::uint64_t eviction_epoch = 0;  ///< Of the tier, when it was given.
  std::uint32_t first = 0;           ///< The position up to which the engine has all itself.
  std::uint32_t limit = 0;           ///< The position that was asked for.
  /// The position up to which every KV cache group can have the rest loaded; `first`: nothing is.
  std::uint32_t end = 0;
  /// The same for the groups that need all blocks: others may lack what a prefix up to there needs.
  std::uint32_t full_end = 0;
  /// By group: what a load of [first, end) needs (BlockGroups::needed()), and after it maybe more.
  std::vector<cpu_tier::PrefixHit> hits;

  [[nodiscard]] bool is_hit() const { return end > first; }
  /// Where a prefix ends that requests share and that could be loaded, if the blocks before its end
  /// were kept of every group; 0: nowhere.
  [[nodiscard]] std::uint32_t junction() const { return full_end > end ? full_end : 0; }
};

/// What a load fills of one slab class, and the lease on the slots that it reads.
struct LeasedBlocks {
  ClassBlocks to;
  cpu_tier::Lease lease;
};
/// What is loaded for a request, of all groups: one entry for each slab class.
using LeasedPrefix = std::vector<LeasedBlocks>;

/// Finds the prefix that every KV cache group can serve: full attention needs all of its blocks, a
/// sliding window or a chunk those that it reaches back to from the end, recurrent state the last
/// one. The part that the engine has itself is there for every group. It keeps nothing: Lookups
/// keeps the answers.
class PrefixSearch {
 public:
  PrefixSearch(cpu_tier::Tier& tier, const BlockGroups& groups) : tier_(tier), groups_(groups) {}

  /// Between the positions `first` and `limit` (both at most as many as the keys cover). `known`:
  /// an earlier answer for the same keys and `first`, or an empty one.
  [[nodiscard]] LookupAnswer find(const GroupKeys& keys, std::uint32_t first, std::uint32_t limit,
                                  LookupAnswer known = {}) const;
  /// Leases what the answer has up to position `end`, for the blocks of `tables`. Nothing, and
  /// nothing leased, if the answer does not hold any more or the tables do not fit it.
  [[nodiscard]] std::optional<LeasedPrefix> lease(
      const GroupKeys& keys, const LookupAnswer& answer, std::uint32_t end,
      std::span<const std::span<const BlockId>> tables) const;

  /// A request with these keys, which cover `num_hashes` positions or more, waits for its turn:
  /// what a load of the first `num_hashes` would take, the blocks of the returned answer, is
  /// evicted last until end_await(), or until it is used.
  [[nodiscard]] LookupAnswer await(const GroupKeys& keys, std::uint32_t num_hashes) const;
  /// Ends an await() that found a prefix up to position `end`.
  void end_await(const GroupKeys& keys, std::uint32_t end) const;

 private:
  /// The last position up to `end` at which a prefix that begins at `first` can end for the group.
  [[nodiscard]] std::uint32_t shorten(const GroupKeys& keys, GroupId group, std::uint32_t first,
                                      std::uint32_t end) const;
  /// What the tier has of a group's blocks, up to the first that is missing.
  [[nodiscard]] cpu_tier::PrefixHit look_up(const GroupKeys& keys, GroupId group,
                                            BlockGroups::Range blocks) const;
  /// Adds what the group needs to `to`; false if that cannot be had.
  [[nodiscard]] bool lease_group(const GroupKeys& keys, const LookupAnswer& answer, GroupId group,
                                 std::uint32_t end, std::span<const BlockId> table,
                                 LeasedPrefix& to) const;

  cpu_tier::Tier& tier_;
  const BlockGroups& groups_;
};

}  // namespace kvferry::connector
