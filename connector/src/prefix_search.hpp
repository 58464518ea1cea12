// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/ownership_table.hpp"
#include "kvferry/connector/scheduler_engine.hpp"
#include "kvferry/cpu_tier/cpu_tier.hpp"

#include "class_tiers.hpp"

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

/// Finds the prefix that every KV cache group can serve: full attention needs all of its blocks,
/// a sliding window those that it reaches back to from the end. The part that the engine has itself
/// is there for every group.
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

  /// Whether the engine keeps a block of that group from `position` on, when the first
  /// `num_computed_tokens` are computed: a sliding window's older ones are another's by now.
  [[nodiscard]] std::uint32_t first_kept(std::size_t group,
                                         std::uint32_t num_computed_tokens) const;
  /// Whether the block only stands for one that slid out of the window.
  [[nodiscard]] bool is_null(std::size_t group, BlockId block) const {
    return groups_[group].window_tokens != 0 && block == kNullBlock;
  }
  [[nodiscard]] std::size_t num_groups() const { return groups_.size(); }
  [[nodiscard]] bool is_window(std::size_t group) const {
    return groups_[group].window_tokens != 0;
  }

 private:
  /// Of the `length` blocks from `first` on, the first that the group needs.
  [[nodiscard]] std::uint32_t first_needed(std::size_t group, std::uint32_t length) const {
    return is_window(group) && length > window_blocks_[group] ? length - window_blocks_[group] : 0;
  }
  /// The longest of at most `length` that the window group can serve.
  [[nodiscard]] std::uint32_t shorten(std::span<const cpu_tier::BlockKey> keys, std::size_t group,
                                      std::uint32_t length) const;
  /// What the group needs of a prefix of `length` blocks.
  [[nodiscard]] cpu_tier::PrefixHit needed(std::span<const cpu_tier::BlockKey> keys,
                                           std::size_t group, std::uint32_t length) const;
  [[nodiscard]] cpu_tier::CpuTier& tier_of(std::size_t group) const {
    return tiers_.of(GroupId(static_cast<std::uint32_t>(group)));
  }
  /// Adds what the group needs to `to`; false if that cannot be had.
  [[nodiscard]] bool lease_group(const Request& request, std::size_t group, std::uint32_t count,
                                 std::span<const BlockId> table, LeasedPrefix& to) const;

  ClassTiers& tiers_;
  std::span<const KvGroup> groups_;
  std::uint32_t block_tokens_;
  std::vector<std::uint32_t> window_blocks_;
};

}  // namespace kvferry::connector
