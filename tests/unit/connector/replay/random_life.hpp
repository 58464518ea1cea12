// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_engine.hpp"

#include "scheduler_fixture.hpp"
#include "virtual_rank.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// Random lives of requests in virtual time: prompts of a few families, so that some are found; a
/// window whose blocks slide out, if a test adds a group for it; aborts, preemptions, resets, other
/// weights, promises; virtual ranks, which end loads and stores in any order, fail, stall and die.
class RandomLife : public SchedulerTest {
 protected:
  std::uint32_t num_chunks_ = 24;
  std::vector<VirtualRank> ranks_;

  void SetUp() override { begin_life(); }

  /// Engines from now on have one more KV cache group: a sliding window of so many tokens.
  void add_window(std::uint32_t tokens, SlabClassId slab_class = SlabClassId(0)) {
    KvGroup group;
    group.reach = TokenReach::window(tokens);
    group.slab_class = slab_class;
    groups_.push_back(group);
    window_tokens_ = tokens;
  }
  /// A new engine, whose ranks have registered. The seed says what happens to it.
  void begin_life(std::uint64_t seed = 1) {
    random_.seed(seed);
    free_.clear();
    living_.clear();
    limbo_.clear();
    waiting_.clear();
    told_in_vain_.clear();
    outputs_.clear();
    notices_.clear();
    ranks_ = {VirtualRank(kRankA, kDomain), VirtualRank(kRankB, kDomain)};
    for (std::uint32_t block = kNumBlocks - 1; block > 0; --block) free_.push_back(block);
    tier_options_ = {};
    max_load_wait_ = std::chrono::milliseconds(20);
    restart(num_chunks_);
    register_ranks({.num_slots = num_chunks_, .ring_blocks = 8, .max_slots = num_chunks_});
  }

  void live(int num_steps) {
    for (int i = 0; i < num_steps; ++i) step();
  }
  /// From now on one of them is silent.
  void kill_a_rank() { ranks_[below(2)].die(); }
  /// Every request ends, and every rank ends its work.
  void drain() {
    end_all();
    const SchedulerSnapshot now = engine_->snapshot();
    EXPECT_EQ(now.tier.num_free + now.tier.num_evictable, now.tier.num_slots);
  }
  /// The same; in a shared tier, others have slots too.
  void end_all() {
    for (VirtualRank& rank : ranks_) rank.hurry();
    while (!living_.empty()) finish(living_.begin()->first);
    for (int i = 0; i < kMostDraining && engine_->is_busy(); ++i) run_ranks();
    EXPECT_FALSE(engine_->is_busy()) << engine_->books();
    EXPECT_EQ(waiting_, std::set<std::string>());
    EXPECT_EQ(told_in_vain_, std::set<std::string>());
    const SchedulerSnapshot now = engine_->snapshot();
    EXPECT_EQ(now.num_requests + now.num_tombstones, 0U);
  }

 private:
  static constexpr int kMostDraining = 32;
  static constexpr std::size_t kMostOutputs = 3;

  struct Living {
    std::vector<std::uint64_t> keys;
    std::vector<Blocks> tables;  ///< By KV cache group.
    std::uint32_t num_computed = 0;
    bool loads = false;
    bool is_loaded = false;  ///< Since its last step.
    bool waits = true;
  };

  [[nodiscard]] std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(random_() % bound);
  }
  [[nodiscard]] bool take_blocks(Living& of, std::size_t count) {
    of.tables.resize(groups_.size());
    if (free_.size() + groups_.size() * of.tables[0].size() < groups_.size() * count) return false;
    for (Blocks& table : of.tables) {
      while (table.size() < count) {
        table.push_back(free_.back());
        free_.pop_back();
      }
    }
    return true;
  }
  /// The engine gives back the blocks of the last group that no token sees any more.
  void slide(Living& of) {
    if (window_tokens_ == 0 || of.tables.empty() || of.num_computed < window_tokens_) return;
    const std::uint32_t num_unseen = (of.num_computed - window_tokens_ + 1) / kBlockTokens;
    Blocks& table = of.tables.back();
    for (std::uint32_t i = 0; i < std::min<std::size_t>(num_unseen, table.size()); ++i) {
      if (table[i] == kNullBlock.value()) continue;
      free_.insert(free_.begin(), std::exchange(table[i], kNullBlock.value()));
    }
  }
  void give_back(Living& of) {
    for (Blocks& table : std::exchange(of.tables, {})) {
      std::erase(table, kNullBlock.value());
      // The engine keeps the blocks of a load until it has heard of its end.
      if (of.loads) {
        limbo_.push_back(std::move(table));
      } else {
        free_.insert(free_.begin(), table.begin(), table.end());
      }
    }
  }
  void finish(const std::string& id) {
    engine_->on_finished(id, 3);
    give_back(living_[id]);
    living_.erase(id);
  }
  void arrive_one() {
    Living of;
    const std::uint32_t family = below(4);
    for (std::uint32_t i = 0; i < 2 + below(4); ++i) of.keys.push_back(100 * family + i);
    while (of.keys.size() < 6) of.keys.push_back(1'000 + ++num_unique_);
    const std::string id = below(8) == 0 && !living_.empty()
                               ? living_.begin()->first
                               : "request " + std::to_string(++num_unique_) +
                                     std::string(below(10) == 0 ? 90 : 0, 'x');
    if (living_.contains(id)) give_back(living_[id]);
    waiting_.erase(id);  // The engine has forgotten the load of the request before.
    const RequestLimits limits{below(6) == 0 ? 8 : RequestLimits::kNone, RequestLimits::kNone};
    arrive(id, of.keys, limits);
    if (below(4) == 0) {
      const ClientHint hint{static_cast<HintAction>(below(kNumHintActions)),
                            std::chrono::milliseconds(30), below(2) == 0 ? "a" : ""};
      engine_->on_hints(id, "session " + std::to_string(below(3)), {&hint, 1});
    }
    living_[id] = of;
  }
  void admit(const std::string& id, Living& of) {
    const auto tokens = static_cast<std::uint32_t>(of.keys.size()) * kBlockTokens;
    const auto found = engine_->lookup(id, 0, tokens + 1);
    if (!found || !take_blocks(of, of.keys.size())) return;
    of.waits = false;
    if (*found > 0) {
      of.loads = true;
      waiting_.insert(id);
      of.num_computed = *found;
      slide(of);
      with_groups(of.tables, [&](auto tables) { engine_->on_allocated(id, tables, *found); });
    } else {
      compute(id, of, TableUpdate::kReplace);
    }
  }
  void compute(const std::string& id, Living& of, TableUpdate update) {
    const auto tokens = static_cast<std::uint32_t>(of.keys.size()) * kBlockTokens;
    const std::uint32_t count = std::min(tokens + 40 - of.num_computed, 1 + below(12));
    slide(of);
    for (std::uint32_t group = 0; group < of.tables.size(); ++group) {
      const Blocks& table = of.tables[group];
      for (std::size_t i = 0; i < std::min(table.size(), of.keys.size()); ++i) {
        if (table[i] != kNullBlock.value()) pool_.cache(table[i], of.keys[i], GroupId(group));
      }
    }
    const bool has_all = update == TableUpdate::kReplace;
    with_groups(has_all ? of.tables : std::vector<Blocks>(), [&](auto tables) {
      engine_->on_scheduled(id, update, tables, of.num_computed, std::min(count, tokens));
    });
    of.num_computed = std::min(of.num_computed + count, tokens);
  }
  void step() {
    now_ += std::chrono::microseconds(below(5'000));
    if (living_.size() < 7) arrive_one();
    if (below(60) == 0) engine_->reset_cache();
    if (below(90) == 0) engine_->change_weights(WeightsId(below(3)), OldBlocks(below(2)));
    if (below(50) == 0 && shared_tier_ == nullptr) engine_->resize(num_chunks_ - below(3));
    if (below(30) == 0) engine_->on_finished("a request that never was");
    if (below(40) == 0) engine_->on_blocks_invalid(blocks_of({1 + below(kNumBlocks - 1)}));
    end_some();
    for (auto& [id, of] : living_) {
      if (of.waits || of.loads || below(12) != 0) continue;
      engine_->on_preempted(id);
      give_back(of);
      of.waits = true;
      of.num_computed = 0;
    }
    for (auto& [id, of] : living_) {
      if (of.waits) {
        admit(id, of);
      } else if (!of.loads) {
        compute(id, of,
                std::exchange(of.is_loaded, false) ? TableUpdate::kReplace : TableUpdate::kAppend);
      }
    }
    run_ranks();
  }
  /// A plan, what the ranks make of it, and what the engine hears.
  void run_ranks() {
    const StepPlan plan = this->plan();
    for (const FailureNotice& notice : plan.notices) {
      notices_[notice.transfer] = notice.engine_request_id;
    }
    std::vector<StepReport> output;
    for (VirtualRank& rank : ranks_) {
      rank.bind(plan);
      if (auto report = rank.report(random_)) output.push_back(*std::move(report));
    }
    outputs_.push_back(std::move(output));
    if (below(3) == 0 && outputs_.size() < kMostOutputs) return;  // They come later.
    for (const std::vector<StepReport>& reports : std::exchange(outputs_, {})) hear(reports);
    std::erase_if(limbo_, [this](const std::vector<std::uint32_t>& blocks) {
      if (ranks_[0].touches(blocks) || ranks_[1].touches(blocks)) return false;
      free_.insert(free_.begin(), blocks.begin(), blocks.end());
      return true;
    });
  }
  /// The engine is told that loads have ended; those that ranks announced have failed.
  void hear(const std::vector<StepReport>& reports) {
    std::set<std::string> announced;
    for (const StepReport& report : reports) {
      for (const TransferId transfer : report.announced) announced.insert(notices_[transfer]);
    }
    for (const std::string& id : fold(reports)) {
      if (waiting_.erase(id) == 0) told_in_vain_.insert(id);
      const auto found = living_.find(id);
      if (found == living_.end() || !found->second.loads) continue;
      Living& of = found->second;
      of.loads = false;
      // The engine computes anew what a failed load was to bring.
      if (announced.contains(id)) of.num_computed = 0;
      of.is_loaded = true;
    }
  }
  void end_some() {
    std::vector<std::string> ended;
    for (const auto& [id, of] : living_) {
      if (below(10) == 0) ended.push_back(id);
    }
    for (const std::string& id : ended) finish(id);
  }

  std::mt19937_64 random_;
  std::uint32_t window_tokens_ = 0;  ///< Of the last group; 0: none has a window.
  std::vector<std::uint32_t> free_;
  std::map<std::string, Living> living_;
  std::uint64_t num_unique_ = 0;
  std::vector<std::vector<std::uint32_t>> limbo_;  ///< Blocks of loads that were aborted.
  std::set<std::string> waiting_;                  ///< Ids whose load the engine waits for.
  std::set<std::string> told_in_vain_;             ///< Ids whose load nothing waited for.
  std::vector<std::vector<StepReport>> outputs_;   ///< Of steps, not folded yet.
  std::map<TransferId, std::string> notices_;
};

}  // namespace kvferry::connector
