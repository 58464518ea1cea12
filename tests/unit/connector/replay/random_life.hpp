// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_engine.hpp"

#include "scheduler_fixture.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// Random lives of requests: prompts of a few families, so that some are found; loads and stores
/// that fail; aborts, preemptions, resets, other weights, promises.
class RandomLife : public SchedulerTest {
 protected:
  static constexpr std::uint32_t kSlots = 24;

  void SetUp() override { begin_life(); }

  /// A new engine, whose ranks have registered. The seed says what happens to it.
  void begin_life(std::uint64_t seed = 1) {
    random_.seed(seed);
    free_.clear();
    for (std::uint32_t block = kNumBlocks - 1; block > 0; --block) free_.push_back(block);
    tier_options_ = {};
    max_load_wait_ = std::chrono::milliseconds(20);
    restart(kSlots);
    register_ranks({.num_slots = kSlots, .ring_blocks = 8, .max_slots = kSlots});
  }

  void live(int num_steps) {
    for (int i = 0; i < num_steps; ++i) step();
  }

 private:
  struct Living {
    std::vector<std::uint64_t> keys;
    std::vector<std::uint32_t> table;
    std::uint32_t num_computed = 0;
    bool loads = false;
    bool is_loaded = false;  ///< Since its last step.
    bool waits = true;
  };

  [[nodiscard]] std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(random_() % bound);
  }
  [[nodiscard]] bool take_blocks(Living& of, std::size_t count) {
    if (free_.size() + of.table.size() < count) return false;
    while (of.table.size() < count) {
      of.table.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }
  void give_back(Living& of) {
    free_.insert(free_.begin(), of.table.begin(), of.table.end());
    of.table.clear();
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
      of.num_computed = *found;
      engine_->on_allocated(id, blocks_of(of.table), *found);
    } else {
      compute(id, of, TableUpdate::kReplace);
    }
  }
  void compute(const std::string& id, Living& of, TableUpdate update) {
    const auto tokens = static_cast<std::uint32_t>(of.keys.size()) * kBlockTokens;
    const std::uint32_t count = std::min(tokens + 40 - of.num_computed, 1 + below(12));
    const auto blocks =
        update == TableUpdate::kReplace ? blocks_of(of.table) : std::vector<BlockId>{};
    for (std::size_t i = 0; i < std::min(of.table.size(), of.keys.size()); ++i) {
      pool_.cache(of.table[i], of.keys[i]);
    }
    engine_->on_scheduled(id, update, blocks, of.num_computed, std::min(count, tokens));
    of.num_computed = std::min(of.num_computed + count, tokens);
  }
  void step() {
    now_ += std::chrono::microseconds(below(5'000));
    if (living_.size() < 7) arrive_one();
    if (below(60) == 0) engine_->reset_cache();
    if (below(90) == 0) engine_->change_weights(WeightsId(below(3)), OldBlocks(below(2)));
    if (below(50) == 0) engine_->resize(kSlots - below(3));
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
    const StepPlan plan = this->plan();
    const std::vector<std::string> now_announced = notified(plan);
    announced_.insert(announced_.end(), now_announced.begin(), now_announced.end());
    const Outcome outcome = below(8) == 0 ? Outcome::kFailed : Outcome::kDone;
    std::vector<std::string> told;
    std::vector<std::string> announced;
    reports_.push_back(ends(kRankA, plan));
    for (StoreGathered& one : reports_.back().gathered) {
      if (below(4) == 0) one.num_gathered -= below(one.num_gathered + 1);
    }
    reports_.push_back(ends(kRankB, plan, outcome));
    if (below(3) == 0) {
      told = fold({});  // The ranks are busy.
    } else {
      told = fold(std::exchange(reports_, {}));
      announced = std::exchange(announced_, {});
    }
    for (const std::string& id : told) {
      const auto found = living_.find(id);
      if (found == living_.end() || !found->second.loads) continue;
      Living& of = found->second;
      of.loads = false;
      // The engine computes anew what a failed load was to bring.
      const bool has_failed = std::find(announced.begin(), announced.end(), id) != announced.end();
      if (has_failed) of.num_computed = 0;
      of.is_loaded = true;
    }
  }
  void end_some() {
    std::vector<std::string> ended;
    for (const auto& [id, of] : living_) {
      if (below(10) == 0) ended.push_back(id);
    }
    for (const std::string& id : ended) {
      engine_->on_finished(id, 3);
      if (!living_[id].loads) give_back(living_[id]);
      living_.erase(id);
    }
  }

  std::mt19937_64 random_;
  std::vector<std::uint32_t> free_;
  std::map<std::string, Living> living_;
  std::uint64_t num_unique_ = 0;
  std::vector<StepReport> reports_;     ///< Not folded yet.
  std::vector<std::string> announced_;  ///< In them.
};

}  // namespace kvferry::connector
