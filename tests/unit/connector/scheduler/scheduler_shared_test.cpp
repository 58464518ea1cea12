// SPDX-License-Identifier: Apache-2.0
// The scheduler of an engine that shares its tier with another one.
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/peers/member_lock.hpp"
#include "kvferry/recorder/recording.hpp"

#include "one_class.hpp"
#include "scheduler_fixture.hpp"
#include "shared_instance.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::connector {
namespace {

using Other = cpu_tier::Instance;

class SchedulerSharedTest : public SchedulerTest {
 protected:
  SchedulerSharedTest()
      : rig_(Other::kShape), directory_(rig_.join("mine")), other_(rig_, "other") {
    shared_tier_ = directory_.get();
    classes_ = {{Other::kChunkSlots, {100, 200}}};
    restart(Other::kNumChunks);
    register_ranks({.num_slots = Other::kNumChunks});
  }
  ~SchedulerSharedTest() override { engine_.reset(); }

  /// The engine ends, and another one begins, none of whose ranks has registered.
  void restart_shared() {
    engine_.reset();
    directory_.reset();
    directory_ = rig_.join("mine again");
    max_load_wait_ = std::chrono::seconds(1);
    shared_tier_ = directory_.get();
    restart(Other::kNumChunks);
  }
  [[nodiscard]] StepReport probed(RankId rank, std::uint64_t probe) const {
    StepReport report = topology_report(rank, {.num_slots = Other::kNumChunks});
    report.topology->probe = probe;
    return report;
  }
  /// The other engine has these keys; where.
  std::vector<std::uint32_t> store_elsewhere(const std::vector<std::uint64_t>& numbers) {
    std::vector<cpu_tier::BlockKey> keys;
    keys.reserve(numbers.size());
    for (const std::uint64_t number : numbers) keys.push_back(key_of(number));
    auto slots = std::move(other_.all().reserve(Other::kOnly, keys)).value().hand_over();
    std::vector<std::uint32_t> taken = cpu_tier::ids(slots.slots());
    other_.tier().commit(std::move(slots));
    return taken;
  }
  /// A request of 17 tokens and keys 1 to 4 is told of all of them, and gets blocks 40 to 43.
  StepPlan load_all(std::string_view id) {
    arrive(id, {1, 2, 3, 4});
    EXPECT_EQ(engine_->lookup(id, 0, 17), 16U);
    engine_->on_allocated(id, blocks_of({40, 41, 42, 43}), 16);
    return plan();
  }

  /// The process of a rank of this engine.
  [[nodiscard]] cpu_tier::MemberLock rank(std::uint32_t number = 0) const {
    return {cpu_tier::LockFile(rig_.path()), cpu_tier::lock_base_of("mine"), number + 1};
  }
  /// What shutdown does, whatever is under way.
  void end_scheduler() {
    engine_.reset();
    directory_.reset();
  }
  [[nodiscard]] cpu_tier::SharedState state_of(SlotId slot) const {
    return rig_.word(cpu_tier::place_of(slot, Other::kChunkSlots)).state();
  }
  /// Plans a store of one block; its slot.
  SlotId store_one(std::string_view id) {
    arrive(id, {21});
    schedule(id, {10}, 0, 4);
    const StepPlan step = plan();
    EXPECT_EQ(step.stores.size(), 1U);
    return step.stores.at(0).blocks.at(0).slot;
  }
  /// Whether the other engine can have that slot's chunk, and everything else that there is.
  [[nodiscard]] bool can_be_had(SlotId slot) {
    const ChunkId chunk = cpu_tier::place_of(slot, Other::kChunkSlots).chunk;
    while (!other_.directory().owns(chunk) && other_.directory().take_chunk()) {
    }
    return other_.directory().owns(chunk);
  }

  cpu_tier::SharedTierRig rig_;
  std::unique_ptr<cpu_tier::TierDirectory> directory_;
  Other other_;
};

TEST_F(SchedulerSharedTest, WhatAnotherEngineStoredIsLoadedFromWhereItLies) {
  const auto slots = store_elsewhere({1, 2, 3, 4});
  const StepPlan step = load_all("r");
  ASSERT_EQ(step.loads.size(), 1U);
  std::vector<std::uint32_t> planned;
  for (const BlockSlot& pair : step.loads[0].parts[0].blocks) planned.push_back(pair.slot.value());
  EXPECT_EQ(planned, slots);
  EXPECT_EQ(view().tier.num_leased_guests, 4U);
  EXPECT_EQ(fold_ends(step), Ids{"r"});
  EXPECT_EQ(view().tier.num_leased_guests, 0U);
  EXPECT_EQ(view().hit_tokens, 16U);
}

TEST_F(SchedulerSharedTest, NothingOfAnotherEngineIsFoundBeforeEveryRankHasSaidHowItsBlocksLie) {
  restart_shared();
  fold({probed(kRankA, 7), probed(kRankB, 8)});
  Other twin(rig_, "twin", directory_->records().name_space());
  std::vector<cpu_tier::BlockKey> keys;
  for (const std::uint64_t number : {1, 2, 3, 4}) keys.push_back(key_of(number));
  twin.tier().commit(std::move(twin.all().reserve(Other::kOnly, keys)).value().hand_over());

  restart_shared();
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), std::nullopt) << "the next step will tell";
  EXPECT_TRUE(plan().loads.empty());
  fold({probed(kRankA, 7)});
  EXPECT_EQ(engine_->lookup("r", 0, 17), std::nullopt);
  fold({probed(kRankB, 8)});
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U);
  engine_.reset();
}

TEST_F(SchedulerSharedTest, NobodyWaitsLongForRanksThatSayNothing) {
  store_elsewhere({1, 2, 3, 4});
  restart_shared();
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), std::nullopt);
  now_ += std::chrono::seconds(1);
  EXPECT_EQ(engine_->lookup("r", 0, 17), 0U);
  EXPECT_EQ(engine_->lookup("r", 0, 4), 0U) << "nothing to wait for";
}

TEST_F(SchedulerSharedTest, EnginesFindEachOthersBlocksIfAllOfTheirRanksSayTheSame) {
  const auto joint_of = [this](std::uint64_t of_a, std::uint64_t of_b) {
    restart_shared();
    fold({probed(kRankA, of_a), probed(kRankB, of_b)});
    return directory_->records().name_space();
  };
  const std::uint64_t found = joint_of(7, 8);
  EXPECT_EQ(joint_of(7, 8), found);
  std::set<std::uint64_t> others{found};
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> probes{{8, 7}, {7, 7}, {8, 8}, {7, 9},
                                                                    {0, 8}, {7, 0}, {0, 0}};
  for (const auto& [of_a, of_b] : probes) others.insert(joint_of(of_a, of_b));
  EXPECT_EQ(others.size(), 1 + probes.size());
}

TEST_F(SchedulerSharedTest, APrefixOfOwnAndForeignBlocksIsOne) {
  fill({1, 2}, 0);
  store_elsewhere({3, 4});
  const StepPlan step = load_all("r");
  ASSERT_EQ(step.loads.size(), 1U);
  EXPECT_EQ(step.loads[0].parts[0].blocks.size(), 4U);
  EXPECT_EQ(view().tier.num_leased, 2U);
  EXPECT_EQ(view().tier.num_leased_guests, 2U);
  EXPECT_EQ(fold_ends(step), Ids{"r"});
}

TEST_F(SchedulerSharedTest, WhatAnotherEngineHasIsNotStored) {
  store_elsewhere({1, 2});
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11, 12}, 0, 12);
  EXPECT_EQ(planned_blocks(plan()), std::vector<std::uint32_t>{12});
}

TEST_F(SchedulerSharedTest, WhileALoadIsUnderWayItsOwnerKeepsTheBlocks) {
  store_elsewhere({1, 2, 3, 4});
  const StepPlan step = load_all("r");
  other_.tier().forget_all();
  EXPECT_EQ(other_.snapshot().num_set_aside, 4U);
  EXPECT_EQ(fold_ends(step), Ids{"r"}) << "what was leased before is right";
}

TEST_F(SchedulerSharedTest, AForeignLoadThatFailsIsNotTriedAgain) {
  store_elsewhere({1, 2, 3, 4});
  const StepPlan step = load_all("r");
  EXPECT_EQ(fold_ends(step, Outcome::kFailed), Ids{});
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 0U);
  EXPECT_EQ(view().tier.num_leased_guests, 0U);
  EXPECT_EQ(fold_ends(plan()), Ids{"r"});
}

TEST_F(SchedulerSharedTest, AfterAResetNothingOfAnotherEngineIsFound) {
  store_elsewhere({1, 2, 3, 4});
  ASSERT_EQ(num_hit({1, 2, 3, 4}), 4U);
  engine_->reset_cache();
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 0U) << "its weights may be others by now";
  fill({1, 2}, 0);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 2U) << "its own";
}

TEST_F(SchedulerSharedTest, AResetDuringAForeignLoadFailsItOnce) {
  store_elsewhere({1, 2, 3, 4});
  const StepPlan step = load_all("r");
  engine_->reset_cache();
  EXPECT_EQ(fold_ends(step), Ids{});
  EXPECT_EQ(view().tier.num_guests, 0U);
  EXPECT_EQ(fold_ends(plan()), Ids{"r"});
}

TEST_F(SchedulerSharedTest, ATierThatIsFullOfWhatOthersReadSkipsTheStore) {
  fill({1, 2, 3, 4, 5, 6, 7, 8}, 0);
  store_elsewhere({11, 12, 13, 14, 15, 16, 17, 18});
  const cpu_tier::OneClass other = other_.tier();
  std::vector<cpu_tier::BlockKey> keys;
  for (std::uint64_t number = 1; number <= 8; ++number) keys.push_back(key_of(number));
  cpu_tier::Lease lease = std::move(other.lease(keys)).value();
  arrive("r", {21, 22});
  schedule("r", {10, 11}, 0, 8);
  EXPECT_TRUE(plan().stores.empty());
  EXPECT_GT(view().skipped_exhausted, 0U);
  other.release(std::move(lease));
}

// EngineCore.shutdown() while a rank lives on: after a TimeoutError, under Ray, or while the
// executor waits for its workers.
TEST_F(SchedulerSharedTest, AtTheEndAStoreUnderWayKeepsItsSlotsWhileARankLives) {
  std::optional<cpu_tier::MemberLock> alive(rank(1));
  const SlotId slot = store_one("r");
  end_scheduler();
  EXPECT_EQ(state_of(slot), cpu_tier::SharedState::kFilling);
  EXPECT_EQ(other_.directory().sweep().num_instances, 0U);
  EXPECT_FALSE(can_be_had(slot)) << "that rank's copy would land in another's block";
  alive.reset();
  EXPECT_EQ(other_.directory().sweep().num_quarantined_slots, 1U);
  EXPECT_TRUE(can_be_had(slot));
  EXPECT_FALSE(other_.directory().begin_fill(cpu_tier::place_of(slot, Other::kChunkSlots)));
}

TEST_F(SchedulerSharedTest, AtTheEndAStoreUnderWayIsInQuarantineWhereNoRankLives) {
  const SlotId slot = store_one("r");
  end_scheduler();
  EXPECT_EQ(state_of(slot), cpu_tier::SharedState::kQuarantined);
}

TEST_F(SchedulerSharedTest, AtTheEndAResetStoreAndALostRanksKeepTheirSlotsToo) {
  const std::optional<cpu_tier::MemberLock> alive(rank());
  const SlotId reset = store_one("r");
  engine_->reset_cache();
  arrive("s", {22});
  schedule("s", {11}, 0, 4);
  const SlotId of_lost = plan().stores.at(0).blocks.at(0).slot;
  now_ += 2 * kRankTimeout;
  try {
    for (int i = 0; i < 40; ++i) static_cast<void>(plan());
  } catch (const TimeoutError&) {
    EXPECT_GT(view().tier.num_quarantined, 0U);
  }
  end_scheduler();
  EXPECT_EQ(state_of(reset), cpu_tier::SharedState::kFilling);
  EXPECT_EQ(state_of(of_lost), cpu_tier::SharedState::kFilling);
}

TEST_F(SchedulerSharedTest, AtTheEndALoadUnderWayKeepsWhatItReadsWhileARankLives) {
  const auto slots = store_elsewhere({1, 2, 3, 4});
  std::optional<cpu_tier::MemberLock> alive(rank());
  static_cast<void>(load_all("r"));
  end_scheduler();
  other_.tier().forget_all();
  EXPECT_EQ(other_.snapshot().num_set_aside, 4U) << "a rank reads them still";
  other_.tend();
  EXPECT_EQ(other_.snapshot().num_set_aside, 4U);
  alive.reset();
  EXPECT_EQ(other_.directory().sweep().num_ended_leases, 4U);
  other_.tend();
  EXPECT_EQ(other_.snapshot().num_set_aside, 0U);
}

TEST_F(SchedulerSharedTest, AtTheEndALoadOfOwnBlocksKeepsTheirChunkWhileARankLives) {
  fill({1, 2}, 0);
  std::optional<cpu_tier::MemberLock> alive(rank());
  arrive("r", {1, 2});
  EXPECT_EQ(engine_->lookup("r", 0, 9), 8U);
  engine_->on_allocated("r", blocks_of({40, 41}), 8);
  const StepPlan step = plan();
  const SlotId read = step.loads.at(0).parts.at(0).blocks.at(0).slot;
  end_scheduler();
  EXPECT_FALSE(can_be_had(read));
  alive.reset();
  static_cast<void>(other_.directory().sweep());
  EXPECT_TRUE(can_be_had(read));
}

// No rank has heard of it.
TEST_F(SchedulerSharedTest, AtTheEndALoadThatWasNotSentReadsNothing) {
  store_elsewhere({1, 2, 3, 4});
  const std::optional<cpu_tier::MemberLock> alive(rank());
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U);
  engine_->on_allocated("r", blocks_of({40, 41, 42, 43}), 16);
  end_scheduler();
  other_.tier().forget_all();
  EXPECT_EQ(other_.snapshot().num_set_aside, 0U);
}

TEST_F(SchedulerSharedTest, WhatTheLostEngineHadIsServedOn) {
  store_elsewhere({1, 2, 3, 4});
  other_.~Instance();
  new (&other_) Other(rig_, "next");
  EXPECT_EQ(fold_ends(load_all("r")), Ids{"r"});
}

TEST_F(SchedulerSharedTest, AnErrorCountsAsTheEndAlthoughTheKeeperGoesOn) {
  EXPECT_THROW(fold({report_of(RankId(9))}), TopologyError);
  engine_->tend();
  const auto recording = recorder::Recording::from_bytes(recorder_->bytes());
  EXPECT_TRUE(recorder::ends_with_error(recording));
  const ReplayResult result = replay(recording);
  EXPECT_FALSE(result.difference) << result.difference->recorded;
  EXPECT_TRUE(result.last_error);
}

// The test's clock stands still, because the keeper's thread reads it.
TEST_F(SchedulerSharedTest, WhatTheKeepersThreadDoesBetweenCallsComesAgainInAReplay) {
  keeper_thread_ = cpu_tier::KeeperThread::kOwn;
  restart_shared();
  register_ranks({.num_slots = Other::kNumChunks});
  const auto num_tended = [this] {
    const auto recording = recorder::Recording::from_bytes(recorder_->bytes());
    return std::count_if(recording.begin(), recording.end(), [](const recorder::Event& event) {
      return event.kind() == recorder::EventKind::kTended;
    });
  };
  store_elsewhere({1, 2, 3, 4});
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(450);
  for (std::uint32_t i = 0; std::chrono::steady_clock::now() < until; ++i) {
    fill({100 + i, 200 + i}, 0);
    fold_ends(load_all("r" + std::to_string(i)));
    engine_->on_finished("r" + std::to_string(i));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  engine_.reset();
  EXPECT_GE(num_tended(), 2);
}

}  // namespace
}  // namespace kvferry::connector
