// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"

#include "class_tiers.hpp"
#include "request_table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// What is loaded for a request: by slab class, a lease for all groups of it and where its bytes
/// go.
struct LeasedPrefix {
  struct Part {
    SlabClassId slab_class;
    cpu_tier::Lease lease;
    std::vector<BlockSlot> blocks;
  };
  std::vector<Part> parts;
};

/// Finds the prefix that every KV cache group can serve: full attention needs all of its blocks, a
/// sliding window or a chunk those that it reaches back to from the end, recurrent state the last
/// one. The part that the engine has itself is there for every group.
class PrefixSearch {
 public:
  PrefixSearch(ClassTiers& tiers, std::span<const KvGroup> groups, std::uint32_t block_tokens);

  /// Behind the first `num_local` blocks and below `limit` (both at most request.num_keys()).
  /// `known`: an earlier answer for the same request and num_local, or an empty one.
  [[nodiscard]] LookupAnswer find(const Request& request, std::uint32_t num_local,
                                  std::uint32_t limit, LookupAnswer known) const;
  /// Leases the first `count` blocks of the request's answer, for the blocks of `tables`. Nothing,
  /// and nothing leased, if the answer does not hold any more or the tables do not fit it.
  [[nodiscard]] std::optional<LeasedPrefix> lease(
      const Request& request, std::uint32_t count,
      std::span<const std::span<const BlockId>> tables) const;

  /// The request waits for its turn: what a load of its whole prefix would take is evicted last
  /// until end_await(), or until somebody uses it.
  void await(Request& request) const;
  void end_await(Request& request) const;

  /// The engine keeps the blocks of that group from there on, when the first `num_computed_tokens`
  /// are computed: older ones that nobody sees any more are another's by now.
  [[nodiscard]] std::uint32_t first_kept(std::size_t group,
                                         std::uint32_t num_computed_tokens) const {
    return groups_[group].reach.first_seen(num_computed_tokens) / block_tokens_;
  }
  /// Whether the block only stands for one that nobody sees any more.
  [[nodiscard]] bool is_null(std::size_t group, BlockId block) const {
    return !needs_all(group) && block == kNullBlock;
  }
  [[nodiscard]] std::size_t num_groups() const { return groups_.size(); }
  [[nodiscard]] bool needs_all(std::size_t group) const { return groups_[group].reach.is_all(); }
  [[nodiscard]] const TokenReach& reach(std::size_t group) const { return groups_[group].reach; }

 private:
  /// Of `length` blocks behind `num_local`, the first that the group needs.
  [[nodiscard]] std::uint32_t first_needed(std::size_t group, std::uint32_t num_local,
                                           std::uint32_t length) const {
    const std::uint32_t first = first_kept(group, (num_local + length) * block_tokens_);
    return first > num_local ? first - num_local : 0;
  }
  /// The longest of at most `length` behind `num_local` that the group can serve.
  [[nodiscard]] std::uint32_t shorten(const Request& request, std::size_t group,
                                      std::uint32_t num_local, std::uint32_t length) const;
  /// What the group needs of `length` blocks behind `num_local`.
  [[nodiscard]] cpu_tier::PrefixHit needed(const Request& request, std::size_t group,
                                           std::uint32_t num_local, std::uint32_t length) const;
  [[nodiscard]] cpu_tier::CpuTier& tier_of(std::size_t group) const {
    return tiers_.of(GroupId(static_cast<std::uint32_t>(group)));
  }
  /// Adds what the group needs to `to`; false if that cannot be had.
  [[nodiscard]] bool lease_group(const Request& request, std::size_t group, std::uint32_t count,
                                 std::span<const BlockId> table, LeasedPrefix& to) const;

  ClassTiers& tiers_;
  std::span<const KvGroup> groups_;
  std::uint32_t block_tokens_;
};

}  // namespace kvferry::connector
