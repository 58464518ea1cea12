// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine_tier.hpp"
#include "fake_engine.hpp"
#include "one_class.hpp"
#include "prefix_search.hpp"
#include "scheduler_fixture.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// Of one class, ready.
inline std::unique_ptr<cpu_tier::Tier> tier_of(const std::vector<KvGroup>& groups,
                                               std::uint32_t num_slots) {
  SchedulerOptions options;
  options.groups = groups;
  options.classes = {{1, {1}}};
  options.max_chunks = num_slots;
  auto tier = make_tier(options);
  tier->grow_to(num_slots);
  return tier;
}

/// Keys of these numbers in each group.
inline GroupKeys keys_of(const std::vector<std::uint64_t>& numbers, std::size_t num_groups) {
  GroupKeys keys(num_groups);
  for (std::uint32_t group = 0; group < num_groups; ++group) {
    for (const std::uint64_t number : numbers) {
      keys[group].push_back(key_of(number, GroupId(group)));
    }
  }
  return keys;
}

/// holds some of them.
class PrefixSearchTest : public ::testing::Test {
 protected:
  using Numbers = std::vector<std::uint32_t>;

  /// `windows`: of each group, in tokens; 0 is full attention.
  void start(const Numbers& windows, std::uint32_t num_keys = 10) {
    for (const std::uint32_t window : windows) {
      groups_.push_back({window == 0 ? TokenReach() : TokenReach::window(window)});
    }
    start_with_groups(num_keys);
  }
  /// With groups_.
  void start_with_groups(std::uint32_t num_keys = 10) {
    tier_ = tier_of(groups_, 200);
    block_groups_ = std::make_unique<BlockGroups>(groups_, kBlockTokens);
    search_ = std::make_unique<PrefixSearch>(*tier_, *block_groups_);
    std::vector<std::uint64_t> numbers;
    for (std::uint64_t i = 0; i < num_keys; ++i) numbers.push_back(i);
    keys_ = keys_of(numbers, groups_.size());
  }
  void hold(std::uint32_t group, const Numbers& positions) {
    for (const std::uint32_t at : positions) {
      auto reserved = tier().reserve({&keys_.at(group).at(at), 1});
      ASSERT_TRUE(reserved.ok());
      tier().commit(std::move(reserved).value().hand_over());
    }
  }
  void forget(std::uint32_t group, std::uint32_t position) {
    auto lease = tier().lease({&keys_.at(group).at(position), 1});
    ASSERT_TRUE(lease.ok());
    cpu_tier::Lease held = std::move(lease).value();
    tier().forget(held);
    tier().release(std::move(held));
  }
  /// Blocks after the local ones; the answer is kept.
  std::uint32_t find(std::uint32_t num_local = 0, std::uint32_t limit = 10) {
    answer_ = search_->find(keys_, num_local, limit);
    return answer_.end - answer_.first;
  }
  /// Leases with these tables; the positions that were leased, by group, as far as they have a
  /// block. Then gives the lease back.
  std::optional<std::vector<BlockSlot>> lease(std::uint32_t count,
                                              const std::vector<Numbers>& tables) {
    std::vector<std::vector<BlockId>> blocks;
    for (const Numbers& table : tables) blocks.push_back(blocks_of(table));
    const std::vector<std::span<const BlockId>> spans(blocks.begin(), blocks.end());
    std::optional<LeasedPrefix> leased =
        search_->lease(keys_, answer_, answer_.first + count, spans);
    if (!leased) {
      EXPECT_EQ(tier().snapshot().num_leased, 0U);
      return std::nullopt;
    }
    if (leased->empty()) return std::vector<BlockSlot>{};
    LeasedBlocks& part = leased->front();
    EXPECT_EQ(tier().snapshot().num_leased, part.lease.size());
    tier().release(std::move(part.lease));
    return std::move(part.to.blocks);
  }
  /// Blocks of a lease, as numbers; none if it was refused.
  Numbers leased_blocks(std::uint32_t count, const std::vector<Numbers>& tables) {
    Numbers numbers;
    const auto blocks = lease(count, tables);
    EXPECT_TRUE(blocks);
    if (!blocks) return {};
    for (const BlockSlot& pair : *blocks) numbers.push_back(pair.block.value());
    return numbers;
  }

  [[nodiscard]] cpu_tier::OneClass tier() { return {*tier_, SlabClassId(0)}; }

  std::unique_ptr<cpu_tier::Tier> tier_;
  std::vector<KvGroup> groups_;
  std::unique_ptr<BlockGroups> block_groups_;
  std::unique_ptr<PrefixSearch> search_;
  GroupKeys keys_;
  LookupAnswer answer_;
};

}  // namespace kvferry::connector
