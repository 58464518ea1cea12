// SPDX-License-Identifier: Apache-2.0
// Plans and reports that were damaged on their way: every bit flipped, every length cut. What
// cannot be read, or contradicts itself, is refused and changes nothing; the right message is taken
// afterwards.
#include "kvferry/base/error.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "fake_engine.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace kvferry::fault {
namespace {

using connector::SchedulerSnapshot;
using connector::StepPlan;
using connector::StepReport;

constexpr connector::DomainId kSender{7};
constexpr std::uint32_t kNumSentBlocks = 16;
constexpr std::uint32_t kNumSentSlots = 16;
constexpr std::uint64_t kSentBlockBytes = 64;

std::span<const std::byte> bytes_of(const std::string& message) {
  return std::as_bytes(std::span(message));
}

// AddressSanitizer makes each new rank slow. The other builds try every bit.
#if defined(__has_feature)
constexpr std::size_t kBitStep = __has_feature(address_sanitizer) ? 3 : 1;
#else
constexpr std::size_t kBitStep = 1;
#endif

/// All messages that differ from `message` in one bit, or end before it does, and one that goes on.
std::vector<std::string> damaged(const std::string& message) {
  std::vector<std::string> all{message + '\0'};
  for (std::size_t size = 0; size < message.size(); ++size) all.push_back(message.substr(0, size));
  for (std::size_t bit = 0; bit < message.size() * 8; bit += kBitStep) {
    all.push_back(message);
    all.back()[bit / 8] ^= static_cast<char>(1U << (bit % 8));
  }
  return all;
}

// ---- a rank and its plan ----

class DamagedPlans : public ::testing::Test {
 protected:
  DamagedPlans() : pool_(kNumSentBlocks * kSentBlockBytes) { restart(); }

  /// A rank that has executed plan 1.
  void restart() {
    engine_.reset();
    connector::WorkerOptions options;
    options.num_chunks = kNumSentSlots;
    options.transfer.staging_bytes = 4 * kSentBlockBytes;
    engine_ = std::make_unique<connector::WorkerEngine>(
        gpu::make_host_device(),
        gpu::make_block_geometry({{.base = reinterpret_cast<std::uintptr_t>(pool_.data()),
                                   .block_stride_bytes = kSentBlockBytes,
                                   .bytes = kSentBlockBytes}},
                                 kNumSentBlocks),
        options);
    StepPlan first;
    first.domain = kSender;
    first.seq = PlanSeq(1);
    engine_->bind(bytes_of(encode(first)), 0);
    engine_->save(0);
    EXPECT_TRUE(engine_->collect().empty());
    EXPECT_FALSE(engine_->take_report().empty()) << "its registration";
  }
  static StepPlan plan() {
    const connector::Owner owner{kSender, connector::RequestId(1), Generation(1)};
    StepPlan plan;
    plan.domain = kSender;
    plan.seq = PlanSeq(2);
    plan.stores.push_back({TransferId(1),
                           owner,
                           SlabClassId(0),
                           connector::StoreReadiness::kNow,
                           {{BlockId(0), SlotId(0)}, {BlockId(2), SlotId(2)}}});
    plan.loads.push_back({TransferId(8), owner, {{SlabClassId(0), {{BlockId(4), SlotId(4)}}}}});
    plan.cancels.push_back(TransferId(64));
    plan.notices.push_back({TransferId(128), "request"});
    return plan;
  }

  std::vector<std::uint8_t> pool_;
  std::unique_ptr<connector::WorkerEngine> engine_;
};

TEST_F(DamagedPlans, ArePutOffAndChangeNothing) {
  const std::string right = encode(plan());
  std::size_t num_refused = 0;
  std::size_t num_taken = 0;
  for (const std::string& wrong : damaged(right)) {
    try {
      engine_->bind(bytes_of(wrong), 0);
      // A plan of other blocks, slots or names is a plan.
      ++num_taken;
      restart();
      continue;
    } catch (const ProtocolError&) {
      ++num_refused;
    }
    ASSERT_FALSE(engine_->waiting());
    ASSERT_TRUE(engine_->collect().empty());
    ASSERT_TRUE(engine_->take_report().empty());
    const transfer::TransferStats stats = engine_->stats();
    ASSERT_EQ(stats.queued_bytes + stats.in_flight_bytes + stats.ring_used_bytes, 0U);
  }
  EXPECT_GT(num_refused, right.size());
  EXPECT_GT(num_taken, 0U);

  engine_->bind(bytes_of(right), 0);
  engine_->save(0);
  EXPECT_EQ(engine_->collect(), std::vector<std::string>{"request"});
  StepReport report;
  const auto start = std::chrono::steady_clock::now();
  while (report.stores.empty() || report.loads.empty()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(2)) << "hangs";
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    EXPECT_TRUE(engine_->collect().empty());
    const std::string bytes = engine_->take_report();
    if (bytes.empty()) continue;
    const StepReport more = connector::decode_report(bytes_of(bytes));
    report.stores.insert(report.stores.end(), more.stores.begin(), more.stores.end());
    report.loads.insert(report.loads.end(), more.loads.begin(), more.loads.end());
  }
  EXPECT_EQ(report.stores[0].outcome, Outcome::kDone);
  EXPECT_EQ(report.loads[0].outcome, Outcome::kDone);
}

// ---- a scheduler side and its reports ----

class DamagedReports : public ::testing::Test {
 protected:
  DamagedReports() : pool_(kNumSentBlocks) {}

  /// A scheduler side of two ranks that nobody has reported to.
  void restart() {
    connector::SchedulerOptions options;
    options.domain = kSender;
    options.world_size = 2;
    options.hash_tokens = 4;
    options.num_blocks = kNumSentBlocks;
    options.classes = {{1, {kSentBlockBytes, kSentBlockBytes}}};
    options.max_chunks = kNumSentSlots;
    engine_ = std::make_unique<connector::SchedulerEngine>(std::move(options));
    engine_->set_pool(&pool_);
  }
  /// One that has two blocks on their way into the tier.
  void restart_with_a_store() {
    restart();
    fold({encode(registration(RankId(0))), encode(registration(RankId(1)))});
    engine_->on_request("a",
                        std::make_shared<connector::FakeHashes>(std::vector<std::uint64_t>{1, 2}));
    engine_->on_scheduled("a", connector::TableUpdate::kReplace, connector::blocks_of({3, 4}), 0,
                          8);
    const std::string plan = engine_->finish_plan();
    store_ = connector::decode_plan(bytes_of(plan)).stores.at(0).transfer;
  }
  static StepReport registration(RankId rank) {
    StepReport report;
    report.domain = kSender;
    report.rank = rank;
    report.topology = {.world_size = 2,
                       .num_blocks = kNumSentBlocks,
                       .classes = {{kSentBlockBytes, 1}},
                       .num_chunks = kNumSentSlots,
                       .max_chunks = kNumSentSlots,
                       .ring_blocks = 8};
    return report;
  }
  [[nodiscard]] StepReport stored(RankId rank) const {
    StepReport report;
    report.domain = kSender;
    report.rank = rank;
    report.gathered = {{store_, 2}};
    report.stores = {{store_, Outcome::kDone, ""}};
    return report;
  }
  void fold(const std::vector<std::string>& reports) {
    std::vector<std::span<const std::byte>> bytes;
    for (const std::string& report : reports) bytes.push_back(bytes_of(report));
    EXPECT_TRUE(engine_->fold(bytes).ended.empty());
  }

  /// Whether a fold of these was refused; then nothing has changed.
  bool refused(const std::vector<std::string>& reports) {
    const SchedulerSnapshot before = engine_->snapshot();
    try {
      fold(reports);
      return false;
    } catch (const ProtocolError&) {
    } catch (const TopologyError&) {
    }
    EXPECT_TRUE(engine_->snapshot() == before) << "refused, but not all of it";
    return true;
  }

  connector::FakePool pool_;
  std::unique_ptr<connector::SchedulerEngine> engine_;
  TransferId store_;
};

TEST_F(DamagedReports, OfAStoreArePutOffAndTheRightOnesAreTaken) {
  restart_with_a_store();
  const std::string rank0 = encode(stored(RankId(0)));
  const std::string rank1 = encode(stored(RankId(1)));
  std::size_t num_refused = 0;
  for (const std::string& wrong : damaged(rank1)) {
    if (refused({wrong})) {
      ++num_refused;
    } else {
      restart_with_a_store();
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(num_refused, rank1.size());
  fold({rank0, rank1});
  EXPECT_EQ(engine_->snapshot().stored, 2U);
}

// A damaged message behind a good one: neither counts, so that both can come again.
TEST_F(DamagedReports, BehindAGoodOneNeitherCounts) {
  restart_with_a_store();
  const std::string stored0 = encode(stored(RankId(0)));
  const std::string stored1 = encode(stored(RankId(1)));
  for (std::size_t size = 0; size < stored1.size(); ++size) {
    ASSERT_TRUE(refused({stored0, stored1.substr(0, size)}));
  }
  fold({stored0, stored1});
  EXPECT_EQ(engine_->snapshot().stored, 2U);
}

// Behind a registration, too: the rank registers again when the fold is repeated.
TEST_F(DamagedReports, BehindARegistrationTheRegistrationDoesNotCount) {
  restart();
  const std::string first = encode(registration(RankId(0)));
  const std::string second = encode(registration(RankId(1)));
  for (const std::string& wrong : damaged(second)) {
    if (refused({first, wrong})) continue;
    restart();
  }
  restart();
  ASSERT_TRUE(refused({first, second.substr(0, second.size() - 1)}));
  ASSERT_TRUE(refused({first, first})) << "one rank registers once";
  fold({first, second});
  EXPECT_EQ(engine_->snapshot().ready_ranks, 2U);
}

// Once every rank has ended a store, none owes a word: what was never gathered was waited for for
// ever.
TEST_F(DamagedReports, TheEndOfAStoreWithoutAWordOfItsGatherIsRefused) {
  restart_with_a_store();
  const std::string stored0 = encode(stored(RankId(0)));
  StepReport ended = stored(RankId(1));
  ended.gathered.clear();
  ASSERT_TRUE(refused({stored0, encode(ended)}));
  fold({stored0, encode(stored(RankId(1)))});
  EXPECT_EQ(engine_->snapshot().stored, 2U);
}

// What a store of two blocks cannot have been gathered of stands behind what can be.
TEST_F(DamagedReports, BehindAGoodOneNonsenseUndoesIt) {
  restart_with_a_store();
  const std::string stored0 = encode(stored(RankId(0)));
  StepReport nonsense = stored(RankId(1));
  nonsense.gathered = {{store_, 3}};
  ASSERT_TRUE(refused({stored0, encode(nonsense)}));
  fold({stored0, encode(stored(RankId(1)))});
  EXPECT_EQ(engine_->snapshot().stored, 2U);
  EXPECT_EQ(engine_->snapshot().stale_reports, 0U) << "nothing came twice";
}

}  // namespace
}  // namespace kvferry::fault
