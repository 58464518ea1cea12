// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"

#include "expect_replay.hpp"
#include "fake_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvferry::connector {

using Blocks = std::vector<std::uint32_t>;
using Ids = std::vector<std::string>;

/// Tokens of a block in these tests.
inline constexpr std::uint32_t kBlockTokens = 4;
/// The answer of a lookup that is to be asked again.
inline constexpr std::optional<std::uint32_t> kAskAgain;

/// Blocks of all stores of a plan, in order.
inline std::vector<std::uint32_t> planned_blocks(const StepPlan& plan) {
  std::vector<std::uint32_t> numbers;
  for (const StoreOrder& order : plan.stores) {
    for (const BlockSlot& pair : order.blocks) numbers.push_back(pair.block.value());
  }
  return numbers;
}

/// A SchedulerEngine with two ranks that the test speaks for, message by message; no thread. What
/// it does is recorded, and replayed at the end of the test.
class SchedulerTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kNumBlocks = 64;
  static constexpr RankId kRankA{0};
  static constexpr RankId kRankB{1};
  static constexpr std::chrono::seconds kRankTimeout{60};

  /// What the ranks have; both register at once.
  struct Sizes {
    std::uint32_t num_slots = 32;  ///< Chunks.
    std::uint32_t ring_blocks = 32;
    std::uint32_t max_slots = 64;
  };

  SchedulerTest() : pool_(kNumBlocks) { restart(); }
  void TearDown() override { end_recording(); }

  /// A new engine that no rank has reported to.
  void restart(std::uint32_t max_slots = 64) {
    SchedulerOptions options;
    options.domain = kDomain;
    options.world_size = 2;
    options.hash_tokens = kBlockTokens;
    options.num_blocks = kNumBlocks;
    options.classes = classes_;
    options.max_chunks = max_slots;
    options.shared_tier = shared_tier_;
    options.keeper_thread = keeper_thread_;
    options.tier = tier_options_;
    options.groups = groups_;
    options.retention = retention_;
    options.later_turns = later_turns_;
    options.stored_part = stored_part_;
    options.rank_timeout = kRankTimeout;
    options.clock = [this] { return now_; };
    options.max_load_wait = max_load_wait_;
    end_recording();
    engine_.reset();
    recorder_ = recorder_of(options, std::uint64_t{1} << 22U, recording_path_);
    engine_ = std::make_unique<SchedulerEngine>(std::move(options));
    engine_->set_pool(&pool_);
  }
  void end_recording() {
    if (shared_tier_ != nullptr) engine_.reset();  // Its keeper records, too.
    if (recorder_ != nullptr) expect_replay(*recorder_);
  }
  /// The engine ends, and what it did is not replayed.
  void forget_recording() {
    engine_.reset();
    recorder_.reset();
  }
  void register_ranks(const Sizes& sizes) {
    fold({topology_report(kRankA, sizes), topology_report(kRankB, sizes)});
  }
  [[nodiscard]] StepReport topology_report(RankId rank, const Sizes& sizes) const {
    StepReport report = report_of(rank);
    report.topology = {.world_size = 2,
                       .num_blocks = kNumBlocks,
                       .classes = {},
                       .num_chunks = sizes.num_slots,
                       .max_chunks = sizes.max_slots,
                       .ring_blocks = sizes.ring_blocks};
    for (const SlabClass& of : classes_) {
      report.topology->classes.push_back({of.slot_bytes[rank.value()], of.slots_per_chunk});
    }
    return report;
  }
  [[nodiscard]] static StepReport report_of(RankId rank) {
    StepReport report;
    report.domain = kDomain;
    report.rank = rank;
    return report;
  }

  std::shared_ptr<FakeHashes> arrive(std::string_view id, const std::vector<std::uint64_t>& keys,
                                     const RequestLimits& limits = {}) {
    auto hashes = std::make_shared<FakeHashes>(keys);
    engine_->on_request(id, hashes, limits);
    return hashes;
  }
  /// Calls `call` with the tables as the scheduler side takes them: one span of blocks for each.
  template <class Call>
  static void with_groups(const std::vector<Blocks>& tables, const Call& call) {
    std::vector<std::vector<BlockId>> blocks;
    for (const Blocks& table : tables) blocks.push_back(blocks_of(table));
    const std::vector<std::span<const BlockId>> spans(blocks.begin(), blocks.end());
    call(std::span<const std::span<const BlockId>>(spans));
  }
  /// The request computes tokens [computed, computed + scheduled) with this whole table.
  void schedule(std::string_view id, const std::vector<std::uint32_t>& table,
                std::uint32_t num_computed, std::uint32_t num_scheduled) {
    engine_->on_scheduled(id, TableUpdate::kReplace, blocks_of(table), num_computed, num_scheduled);
  }
  [[nodiscard]] StepPlan plan() {
    const std::string bytes = engine_->finish_plan();
    return decode_plan(std::as_bytes(std::span(bytes)));
  }

  /// Blocks that the step and the next one store, what was found in the engine's cache included, by
  /// number.
  [[nodiscard]] std::vector<std::uint32_t> planned_in_two() {
    std::vector<std::uint32_t> blocks = planned_blocks(plan());
    const std::vector<std::uint32_t> later = planned_blocks(plan());
    blocks.insert(blocks.end(), later.begin(), later.end());
    std::sort(blocks.begin(), blocks.end());
    return blocks;
  }

  /// The ids that the engine is told of; those that it must not be told of are in `stale_` then.
  std::vector<std::string> fold(const std::vector<StepReport>& reports) {
    std::vector<std::string> encoded;
    for (const StepReport& report : reports) encoded.push_back(encode(report));
    std::vector<std::span<const std::byte>> bytes;
    for (const std::string& report : encoded) bytes.push_back(std::as_bytes(std::span(report)));
    FoldResult result = engine_->fold(bytes);
    stale_ = std::move(result.stale);
    return std::move(result.ended);
  }
  /// All of the plan's transfers, ended in one way on one rank, and its notices announced.
  [[nodiscard]] static StepReport ends(RankId rank, const StepPlan& plan,
                                       Outcome outcome = Outcome::kDone) {
    StepReport report = report_of(rank);
    for (const StoreOrder& order : plan.stores) {
      report.gathered.push_back({order.transfer, static_cast<std::uint32_t>(order.blocks.size())});
      report.stores.push_back({order.transfer, outcome, ""});
    }
    for (const LoadOrder& order : plan.loads) {
      report.loads.push_back({order.transfer, outcome, ""});
    }
    for (const FailureNotice& notice : plan.notices) report.announced.push_back(notice.transfer);
    return report;
  }
  std::vector<std::string> fold_ends(const StepPlan& plan, Outcome outcome = Outcome::kDone) {
    return fold({ends(kRankA, plan, outcome), ends(kRankB, plan, outcome)});
  }

  /// Brings keys into the tier: a request computes them into blocks from `first_block` on, and
  /// ends.
  void fill(const std::vector<std::uint64_t>& keys, std::uint32_t first_block) {
    const std::string id = "fill " + std::to_string(++num_fills_);
    arrive(id, keys);
    std::vector<std::uint32_t> table;
    for (std::uint32_t i = 0; i < keys.size(); ++i) table.push_back(first_block + i);
    schedule(id, table, 0, static_cast<std::uint32_t>(keys.size()) * kBlockTokens);
    fold_ends(plan());
    engine_->on_finished(id);
  }
  /// Blocks of these keys that a fresh request could load.
  [[nodiscard]] std::uint32_t num_hit(const std::vector<std::uint64_t>& keys) {
    const std::string id = "probe " + std::to_string(++num_fills_);
    arrive(id, keys);
    const std::uint32_t tokens =
        engine_->lookup(id, 0, static_cast<std::uint32_t>(keys.size()) * kBlockTokens + 1).value();
    engine_->on_finished(id);
    return tokens / kBlockTokens;
  }
  [[nodiscard]] SchedulerSnapshot view() const { return engine_->snapshot(); }

  static constexpr DomainId kDomain{7};
  std::chrono::nanoseconds max_load_wait_{0};  ///< Of the next restart().
  std::chrono::steady_clock::time_point now_;  ///< Stands still unless the test moves it.
  /// These tests are about plans: which blocks are stored and evicted is to be foreseen. Without
  /// look-ahead.
  cpu_tier::TierOptions tier_options_{cpu_tier::Eviction::kLru, cpu_tier::Admission::kAlways, 0};
  Retention retention_;
  LaterTurns later_turns_ = LaterTurns::kStored;
  StoredPart stored_part_ = StoredPart::kAll;
  std::vector<KvGroup> groups_{KvGroup{}};  ///< Of the next restart(), as the classes.
  std::vector<SlabClass> classes_{{1, {100, 200}}};
  cpu_tier::TierDirectory* shared_tier_ = nullptr;  ///< Of the next restart(); outlives its engine.
  cpu_tier::KeeperThread keeper_thread_ = cpu_tier::KeeperThread::kNone;
  FakePool pool_;
  std::string recording_path_;  ///< Of the next engine; empty: it records in memory.
  std::unique_ptr<recorder::Recorder> recorder_;
  std::unique_ptr<SchedulerEngine> engine_;
  std::vector<std::string> stale_;  ///< Of the last fold.
  std::uint64_t num_fills_ = 0;
};

/// Blocks of an order, as numbers.
inline std::vector<std::uint32_t> block_numbers(const std::vector<BlockSlot>& blocks) {
  std::vector<std::uint32_t> numbers;
  for (const BlockSlot& pair : blocks) numbers.push_back(pair.block.value());
  return numbers;
}

inline std::vector<std::uint32_t> block_numbers(const LoadOrder& order) {
  std::vector<std::uint32_t> numbers;
  for (const ClassBlocks& part : order.parts) {
    const std::vector<std::uint32_t> more = block_numbers(part.blocks);
    numbers.insert(numbers.end(), more.begin(), more.end());
  }
  return numbers;
}

/// Engine ids of a plan's notices, in order.
inline std::vector<std::string> notified(const StepPlan& plan) {
  std::vector<std::string> ids;
  for (const FailureNotice& notice : plan.notices) ids.push_back(notice.engine_request_id);
  return ids;
}

}  // namespace kvferry::connector
