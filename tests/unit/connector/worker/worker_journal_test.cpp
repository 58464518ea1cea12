// SPDX-License-Identifier: Apache-2.0
// What a rank records. The fixture checks the recording of every other test of the worker.
#include "kvferry/recorder/recorded_error.hpp"

#include "rank_journal.hpp"
#include "worker_fixture.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace kvferry::connector {
namespace {

using recorder::Event;
using recorder::EventKind;
using recorder::Recording;

class WorkerJournalTest : public WorkerTest {
 protected:
  /// The names of the recorded events.
  [[nodiscard]] static std::vector<std::string> names_in(const Recording& recording) {
    std::vector<std::string> names;
    for (const Event& event : recording) names.push_back(recorder::name_of(event.kind()));
    return names;
  }
  /// What the only event of a kind says: its number, then its words.
  [[nodiscard]] std::vector<std::uint64_t> only(EventKind kind) const {
    std::vector<std::uint64_t> said;
    const Recording recording = recorded();
    for (const Event& event : recording) {
      if (event.kind() != kind) continue;
      EXPECT_TRUE(said.empty()) << "a second " << recorder::to_text(event);
      said.assign(1, event.number());
      said.insert(said.end(), event.words.begin(), event.words.end());
    }
    EXPECT_FALSE(said.empty()) << "no " << recorder::name_of(kind);
    return said;
  }
};

TEST_F(WorkerJournalTest, HasAStoreFromItsPlanToItsReport) {
  StepPlan plan = next_plan();
  plan.stores.push_back(store(7, {{BlockId(3), SlotId(5), 99}}));
  bind_and_save(plan);
  collect_ends(1, 0);
  std::vector<std::string> names = names_in(recorded());
  EXPECT_EQ(names.back(), "reported");
  std::erase(names, "reported");
  EXPECT_EQ(names,
            (std::vector<std::string>{"bound", "store", "planned", "saved", "gathered", "copied"}));
  EXPECT_EQ(only(EventKind::kBound)[0], 1U);
  EXPECT_EQ(only(EventKind::kStore),
            (std::vector<std::uint64_t>{1, 7, recorder::halves(0, 1), 99, recorder::halves(3, 5)}));
  EXPECT_EQ(only(EventKind::kGathered), (std::vector<std::uint64_t>{0, 7, recorder::halves(1, 1)}));
  const std::vector<std::uint64_t> copied = only(EventKind::kCopied);
  ASSERT_EQ(copied.size(), 6U);
  EXPECT_EQ(copied[0], 0U);
  EXPECT_EQ(copied[2], 7U);
  EXPECT_EQ(copied[5], kBlockBytes);
}

TEST_F(WorkerJournalTest, HasLoadsInTheOrderInWhichTheirEndsWereSeen) {
  StepPlan stores = next_plan();
  stores.stores.push_back(store(1, pairs(0, 0, 3)));
  bind_and_save(stores);
  collect_ends(1, 0);
  valve_.hold(Kind::kCopyH2D);
  StepPlan loads = next_plan();
  for (std::uint32_t i = 0; i < 3; ++i) loads.loads.push_back(load(10 + i, pairs(10 + i, i, 1)));
  loads.loads.push_back(load(20, {}));
  bind(loads);
  valve_.open_all();
  collect_ends(1, 4);
  const RankRecording found = expect_rank_recording(recorded());
  EXPECT_EQ(found.loads, (std::set<std::uint64_t>{10, 11, 12, 20}));
  EXPECT_EQ(found.ends.size(), 5U);
  std::vector<std::uint64_t> reported{1, 20};
  for (const TransferEnded& one : report_.loads) {
    if (one.transfer != TransferId(20)) reported.push_back(one.transfer.value());
  }
  EXPECT_EQ(found.in_order, reported);
}

TEST_F(WorkerJournalTest, APlanThatIsRefusedIsThereWithItsError) {
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, kNumSlots, 1)));
  static_cast<void>(refusal(plan));
  EXPECT_EQ(names_in(recorded()), (std::vector<std::string>{"bound", "store", "planned", "threw"}));
  EXPECT_EQ(only(EventKind::kThrew)[0],
            static_cast<std::uint64_t>(recorder::ErrorClass::kProtocol));
  EXPECT_TRUE(expect_rank_recording(recorded()).stores.empty());
}

TEST_F(WorkerJournalTest, SleepAndWakeAreThere) {
  bind_and_save(next_plan());
  engine_->sleep();
  engine_->sleep();
  EXPECT_EQ(only(EventKind::kAsleep)[0], 1U);
  const gpu::Fragment whole{.base = reinterpret_cast<std::uintptr_t>(pool_.data()),
                            .block_stride_bytes = kBlockBytes,
                            .bytes = kBlockBytes};
  engine_->wake({gpu::make_block_geometry({whole}, kNumBlocks)});
  std::vector<std::string> names = names_in(recorded());
  EXPECT_EQ(std::count(names.begin(), names.end(), "asleep"), 2);
}

TEST_F(WorkerJournalTest, AFailedLoadIsThereWithItsOutcome) {
  StepPlan stores = next_plan();
  stores.stores.push_back(store(1, pairs(0, 0, 1)));
  bind_and_save(stores);
  collect_ends(1, 0);
  valve_.fail_nth(Kind::kCopyH2D, 1);
  StepPlan loads = next_plan();
  loads.loads.push_back(load(2, pairs(4, 0, 1)));
  bind(loads);
  collect_ends(1, 1);
  EXPECT_EQ(expect_rank_recording(recorded()).ends,
            (std::map<std::uint64_t, Outcome>{{1, Outcome::kDone}, {2, Outcome::kFailed}}));
}

TEST_F(WorkerJournalTest, ABrokenInvariantIsRecordedByTheRankThatFindsIt) {
  const auto other = std::make_shared<recorder::Recorder>(recorder::Recorder::kMinRingBytes,
                                                          recorder::RecordedBy{"1.0", 1, ""});
  recorder::set_witness(other.get());
  {
    const RankJournal journal(recorder_);
    const RankJournal::Watch watch = journal.watch();
    EXPECT_EQ(recorder::witness(), recorder_.get());
  }
  EXPECT_EQ(recorder::witness(), other.get());
  recorder::set_witness(nullptr);
}

}  // namespace
}  // namespace kvferry::connector
