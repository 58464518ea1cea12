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
  std::uint32_t num_local_blocks = 0;
  std::uint32_t num_limit_blocks = 0;
  /// Blocks after the local ones that every KV cache group can have loaded.
  std::uint32_t num_blocks = 0;
  /// By group. Full attention: from the first block after the local ones on, num_blocks or more.
  /// Other groups: the last ones before local + num_blocks, as many as the next token sees.
  std::vector<cpu_tier::PrefixHit> hits;
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

  /// After the first `num_local` blocks and below `limit` (both at most the number of keys).
  /// `known`: an earlier answer for the same keys and num_local, or an empty one.
  [[nodiscard]] LookupAnswer find(const GroupKeys& keys, std::uint32_t num_local,
                                  std::uint32_t limit, LookupAnswer known = {}) const;
  /// Leases the first `count` blocks of the answer, for the blocks of `tables`. Nothing, and
  /// nothing leased, if the answer does not hold any more or the tables do not fit it.
  [[nodiscard]] std::optional<LeasedPrefix> lease(
      const GroupKeys& keys, const LookupAnswer& answer, std::uint32_t count,
      std::span<const std::span<const BlockId>> tables) const;

  /// A request with these keys waits for its turn: what a load of its whole prefix would take, the
  /// blocks of the returned answer, is evicted last until end_await(), or until it is used.
  [[nodiscard]] LookupAnswer await(const GroupKeys& keys) const;
  /// Ends an await() that found `num_blocks`.
  void end_await(const GroupKeys& keys, std::uint32_t num_blocks) const;

 private:
  /// The longest prefix of at most `length` after `num_local` that the group can serve.
  [[nodiscard]] std::uint32_t shorten(const GroupKeys& keys, GroupId group, std::uint32_t num_local,
                                      std::uint32_t length) const;
  /// What the group needs of `length` blocks after `num_local`.
  [[nodiscard]] cpu_tier::PrefixHit needed(const GroupKeys& keys, GroupId group,
                                           std::uint32_t num_local, std::uint32_t length) const;
  /// Adds what the group needs to `to`; false if that cannot be had.
  [[nodiscard]] bool lease_group(const GroupKeys& keys, const LookupAnswer& answer, GroupId group,
                                 std::uint32_t count, std::span<const BlockId> table,
                                 LeasedPrefix& to) const;

  cpu_tier::Tier& tier_;
  const BlockGroups& groups_;
};

}  // namespace kvferry::connector
