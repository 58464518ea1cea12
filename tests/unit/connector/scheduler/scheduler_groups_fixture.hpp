// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "scheduler_fixture.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::connector {

/// An engine with two KV cache groups: full attention, and a sliding window of 8 tokens (a token
/// sees itself and 7 before it: two blocks).
class SchedulerGroupsTest : public SchedulerTest {
 protected:
  static constexpr GroupId kWindow{1};

  SchedulerGroupsTest() { restart_with({{}, {TokenReach::window(8)}}); }

  void restart_with(const std::vector<KvGroup>& groups) {
    groups_ = groups;
    restart();
    register_ranks({});
  }
  void schedule(std::string_view id, const std::vector<Blocks>& tables, std::uint32_t num_computed,
                std::uint32_t num_scheduled, TableUpdate update = TableUpdate::kReplace) {
    with_groups(tables, [&](auto blocks) {
      engine_->on_scheduled(id, update, blocks, num_computed, num_scheduled);
    });
  }
  void allocate(std::string_view id, const std::vector<Blocks>& tables, std::uint32_t num_tokens) {
    with_groups(tables, [&](auto blocks) { engine_->on_allocated(id, blocks, num_tokens); });
  }
  /// Brings keys into the tier, in both groups: computes them from `first_block` on and from
  /// `first_block` + 10 on.
  void fill_both(const std::vector<std::uint64_t>& keys, std::uint32_t first_block) {
    const std::string id = "fill " + std::to_string(++num_fills_);
    arrive(id, keys);
    std::vector<Blocks> tables(2);
    for (std::uint32_t i = 0; i < keys.size(); ++i) {
      tables[0].push_back(first_block + i);
      tables[1].push_back(first_block + 10 + i);
    }
    schedule(id, tables, 0, static_cast<std::uint32_t>(keys.size()) * kBlockTokens);
    fold_ends(plan());
    engine_->on_finished(id);
  }
  /// Leaves keys in the engine's own cache only: computed there and proven, and not in the tier. In
  /// a group of states, the last block.
  void leave_to_the_engine(const std::vector<std::uint64_t>& keys,
                           const std::vector<Blocks>& tables) {
    const std::string id = "left " + std::to_string(++num_fills_);
    arrive(id, keys);
    const auto num_tokens = static_cast<std::uint32_t>(keys.size()) * kBlockTokens;
    schedule(id, tables, 0, num_tokens);
    for (std::uint32_t group = 0; group < tables.size(); ++group) {
      if (groups_[group].reach.is_state()) {
        engine_->on_state(id, GroupId(group), BlockId(tables[group].back()), num_tokens);
      }
      for (std::size_t i = 0; i < keys.size(); ++i) {
        pool_.cache(tables[group][i], keys[i], GroupId(group));
      }
    }
    fold_ends(plan());
    engine_->on_finished(id);
    engine_->reset_cache();
  }
  std::uint32_t ask(std::string_view id, const std::vector<std::uint64_t>& keys,
                    std::uint32_t num_local_blocks = 0) {
    arrive(id, keys);
    const auto num_tokens = static_cast<std::uint32_t>(keys.size()) * kBlockTokens + 1;
    return engine_->lookup(id, num_local_blocks * kBlockTokens, num_tokens).value() / kBlockTokens;
  }
};

}  // namespace kvferry::connector
