// SPDX-License-Identifier: Apache-2.0
#include "report_life.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"

#include <cstring>
#include <utility>

namespace kvferry::fuzz {

using connector::StepPlan;
using connector::StepReport;

namespace {

/// Rounds of plans and reports within which all that is under way ends.
constexpr int kMostRounds = 8;

std::span<const std::byte> bytes_of(const std::string& message) {
  return std::as_bytes(std::span(message));
}

}  // namespace

ReportLife::ReportLife(Stage stage) {
  connector::SchedulerOptions options;
  options.domain = kDomain;
  options.world_size = kNumRanks;
  options.hash_tokens = kBlockTokens;
  options.num_blocks = kNumBlocks;
  options.classes = {{1, {kSlotBytes, kSlotBytes}}};
  options.max_chunks = kNumChunks;
  engine_ = std::make_unique<connector::SchedulerEngine>(std::move(options));
  engine_->set_pool(&pool_);
  if (stage == Stage::kNew) return;
  if (stage == Stage::kOneRegistered) {
    fold({encode(registration(RankId(0)))});
    return;
  }
  register_all();
  if (stage == Stage::kIdle) return;
  store("before", {1, 2, 3}, 1);
  begin_storing("storing", {11, 12, 13}, 5);
  if (stage == Stage::kStoring) return;
  begin_loading("loading", {1, 2, 3});
  if (stage == Stage::kLoading) return;
  // A load that the engine allocated without an answer fails, and has to be announced.
  engine_->on_request("failing",
                      std::make_shared<connector::FakeHashes>(std::vector<std::uint64_t>{21, 22}));
  engine_->on_allocated("failing", connector::blocks_of({20, 21}), 8);
  waiting_.insert("failing");
  if (stage == Stage::kResizing) engine_->resize(kNumChunks / 2);
  plan();
}

StepReport ReportLife::report_of(RankId rank) {
  StepReport report;
  report.domain = kDomain;
  report.rank = rank;
  return report;
}

StepReport ReportLife::registration(RankId rank) {
  StepReport report = report_of(rank);
  report.topology = {.world_size = kNumRanks,
                     .num_blocks = kNumBlocks,
                     .classes = {{kSlotBytes, 1}},
                     .num_chunks = kNumChunks,
                     .max_chunks = 2 * kNumChunks,
                     .ring_blocks = 8,
                     .chunks_per_piece = kRun};
  return report;
}

void ReportLife::fold(const std::vector<std::string>& messages) {
  std::vector<std::span<const std::byte>> bytes;
  for (const std::string& message : messages) bytes.push_back(bytes_of(message));
  const connector::FoldResult result = engine_->fold(bytes);
  for (const std::string& id : result.ended) {
    const auto found = waiting_.find(id);
    KVFERRY_CHECK(found != waiting_.end(), "the engine is told of " + id + ", which does not wait");
    waiting_.erase(found);
  }
}

void ReportLife::take(const std::vector<std::string>& messages) {
  const connector::SchedulerSnapshot before = engine_->snapshot();
  try {
    fold(messages);
  } catch (const Error& error) {
    KVFERRY_CHECK(dynamic_cast<const ProtocolError*>(&error) != nullptr ||
                      dynamic_cast<const TopologyError*>(&error) != nullptr,
                  std::string("another kind of error: ") + error.what());
    KVFERRY_CHECK(std::strlen(error.what()) > 20, "a refusal that says nothing");
    KVFERRY_CHECK(engine_->snapshot() == before, "refused, but not all of it");
  }
}

void ReportLife::register_all() {
  for (std::uint32_t rank = 0; rank < kNumRanks; ++rank) {
    try {
      fold({encode(registration(RankId(rank)))});
    } catch (const TopologyError&) {
      // It was registered by what came before.
    }
  }
  KVFERRY_CHECK(engine_->snapshot().ready_ranks == kNumRanks, "a rank cannot register");
}

void ReportLife::plan() {
  const std::string bytes = engine_->finish_plan();
  StepPlan plan = connector::decode_plan(bytes_of(bytes));
  KVFERRY_CHECK(encode(plan) == bytes, "a plan that does not read as it was written");
  if (!plan.empty()) plans_.push_back(std::move(plan));
}

void ReportLife::report_the_rest() {
  const std::vector<StepPlan> plans = std::exchange(plans_, {});
  for (std::uint32_t rank = 0; rank < kNumRanks; ++rank) {
    StepReport report = report_of(RankId(rank));
    for (const StepPlan& plan : plans) {
      for (const auto& order : plan.stores) {
        const auto count = static_cast<std::uint32_t>(order.blocks.size());
        report.gathered.push_back({order.transfer, count});
        report.stores.push_back({order.transfer, Outcome::kDone, ""});
      }
      for (const auto& order : plan.loads) {
        report.loads.push_back({order.transfer, Outcome::kDone, ""});
      }
      for (const auto& order : plan.chunks) report.chunks.push_back({order, ""});
      for (const auto& notice : plan.notices) report.announced.push_back(notice.transfer);
    }
    fold({encode(report)});
  }
}

void ReportLife::begin_storing(std::string_view id, const std::vector<std::uint64_t>& numbers,
                               std::uint32_t first_block) {
  engine_->on_request(id, std::make_shared<connector::FakeHashes>(numbers));
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t i = 0; i < numbers.size(); ++i) {
    blocks.push_back(first_block + i);
    pool_.cache(first_block + i, numbers[i]);
  }
  engine_->on_scheduled(id, connector::TableUpdate::kReplace, connector::blocks_of(blocks), 0,
                        static_cast<std::uint32_t>(numbers.size()) * kBlockTokens);
  plan();
}

void ReportLife::store(std::string_view id, const std::vector<std::uint64_t>& numbers,
                       std::uint32_t first_block) {
  begin_storing(id, numbers, first_block);
  engine_->on_finished(id);
  report_the_rest();
}

void ReportLife::begin_loading(std::string_view id, const std::vector<std::uint64_t>& numbers) {
  const auto num_tokens = static_cast<std::uint32_t>(numbers.size()) * kBlockTokens;
  engine_->on_request(id, std::make_shared<connector::FakeHashes>(numbers));
  const auto answer = engine_->lookup(id, 0, num_tokens + 1);
  KVFERRY_CHECK(answer == num_tokens, "what was stored is not found");
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t i = 0; i < numbers.size(); ++i) blocks.push_back(14 + i);
  engine_->on_allocated(id, connector::blocks_of(blocks), num_tokens);
  waiting_.emplace(id);
  plan();
}

void ReportLife::expect_all_ends() {
  register_all();
  // What a rank was said to have failed comes back as a notice.
  for (int round = 0; round < kMostRounds; ++round) {
    report_the_rest();
    plan();
  }
  report_the_rest();
  const connector::SchedulerSnapshot now = engine_->snapshot();
  KVFERRY_CHECK(waiting_.empty(), "the engine waits for ever");
  KVFERRY_CHECK(now.num_stores_in_flight == 0 && now.num_loads_in_flight == 0,
                std::to_string(now.num_stores_in_flight) + " stores and " +
                    std::to_string(now.num_loads_in_flight) + " loads do not end");
  KVFERRY_CHECK(now.tier.conserved() && now.tier.num_writable + now.tier.num_aborted +
                                                now.tier.num_leased + now.tier.num_dying +
                                                now.tier.num_quarantined - now.tier.num_set_aside ==
                                            0,
                "a slot is lost");
  for (const char* id : {"before", "storing", "loading", "failing"}) engine_->on_finished(id);
  KVFERRY_CHECK(engine_->snapshot().num_tombstones == 0, "a request is kept");
  const std::uint64_t num_stored = engine_->snapshot().stored;
  store("after", {31, 32}, 24);
  // A rank that was said to have no ring, or one slot, or damaged blocks, stores less.
  if (engine_->snapshot().stored < num_stored + 2) return;
  begin_loading("last", {31, 32});
  report_the_rest();
  KVFERRY_CHECK(waiting_.empty(), "a right load is not told of");
}

}  // namespace kvferry::fuzz
