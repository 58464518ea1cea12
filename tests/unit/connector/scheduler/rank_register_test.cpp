// SPDX-License-Identifier: Apache-2.0
#include "rank_register.hpp"

#include "kvferry/base/error.hpp"

#include "complaint.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace kvferry::connector {
namespace {

SchedulerOptions told() {
  SchedulerOptions options;
  options.world_size = 2;
  options.hash_tokens = 16;
  options.num_blocks = 1000;
  options.classes = {{1, {4096, 2048}}};
  options.max_chunks = 500;
  return options;
}

StepReport first_report(std::uint32_t rank) {
  StepReport report;
  report.rank = RankId(rank);
  report.topology = {.world_size = 2,
                     .num_blocks = 1000,
                     .classes = {{rank == 0 ? 4096U : 2048U, 1}},
                     .num_chunks = 300 + 100 * rank,
                     .max_chunks = 500 - 50 * rank,
                     .ring_blocks = 40 - 10 * rank};
  return report;
}

/// The message that `take` throws for a report of rank 1 spoilt by `spoil`.
std::string complaint(const std::function<void(StepReport&)>& spoil) {
  const SchedulerOptions options = told();
  RankRegister ranks(options);
  ranks.take(first_report(0));
  StepReport report = first_report(1);
  spoil(report);
  try {
    ranks.take(report);
  } catch (const TopologyError& error) {
    EXPECT_EQ(ranks.num_ready(), 1U);
    return error.what();
  }
  ADD_FAILURE() << "no TopologyError";
  return {};
}

TEST(RankRegister, SlotsBecomeMoreOnARegisteredRankOnly) {
  const SchedulerOptions options = told();
  RankRegister ranks(options);
  StepReport more;
  more.rank = RankId(0);
  more.num_ready_chunks = 450;
  EXPECT_THROW(ranks.take(more), ProtocolError);
  ranks.take(first_report(0));
  ranks.take(first_report(1));
  EXPECT_EQ(ranks.least_chunks(), 300U);
  ranks.take(more);
  EXPECT_EQ(ranks.least_chunks(), 400U);
  more.num_ready_chunks = 449;
  EXPECT_THROW(ranks.take(more), ProtocolError);
  more.num_ready_chunks = 501;
  EXPECT_THROW(ranks.take(more), ProtocolError);
}

TEST(RankRegister, IsReadyWhenEveryRankHasReportedWithTheLeastOfEach) {
  const SchedulerOptions options = told();
  RankRegister ranks(options);
  ranks.take(first_report(1));
  EXPECT_FALSE(ranks.all_ready());
  ranks.take(first_report(0));
  EXPECT_TRUE(ranks.all_ready());
  EXPECT_EQ(ranks.least_chunks(), 300U);
  EXPECT_EQ(ranks.least_max_chunks(), 450U);
  EXPECT_EQ(ranks.ring_room().num_bytes, 30U * ranks.ring_room().block_bytes.front());
}

TEST(RankRegister, ABlockTakesOfTheRingWhatItTakesOnTheRankWhereThatIsMost) {
  SchedulerOptions options = told();
  options.classes = {{1, {4096, 0}}, {2, {1024, 0}}, {2, {1024, 0}}};
  RankRegister ranks(options);
  for (const std::uint32_t rank : {0U, 1U}) {
    StepReport report = first_report(rank);
    report.topology->classes = rank == 0 ? std::vector<RankSlots>{{4096, 1}, {1024, 2}, {1024, 2}}
                                         : std::vector<RankSlots>{{500, 1}, {1000, 2}, {10, 2}};
    ranks.take(report);
  }
  const RingRoom room = ranks.ring_room();
  EXPECT_EQ(room.num_bytes, 30U * 4096);
  EXPECT_EQ(room.block_bytes, (std::vector<std::uint64_t>{4096, 4096, 1024}));
}

TEST(RankRegister, TakesReportsWithoutTopologyOfEveryRankThatExists) {
  const SchedulerOptions options = told();
  RankRegister ranks(options);
  StepReport report;
  report.rank = RankId(1);
  ranks.take(report);
  EXPECT_EQ(ranks.num_ready(), 0U);
}

// kvcached#339: a world size read before it was known made the engine hang.
TEST(RankRegister, AnotherWorldSizeNamesBothSides) {
  expect_named(complaint([](StepReport& report) { report.topology->world_size = 1; }),
               {"rank 1", "world size 1", "told 2"});
}

TEST(RankRegister, ARankBeyondTheWorldNamesBothSides) {
  expect_named(complaint([](StepReport& report) { report.rank = RankId(2); }),
               {"rank 2", "world size of 2"});
  expect_named(complaint([](StepReport& report) {
                 report.rank = RankId(9);
                 report.topology.reset();
               }),
               {"rank 9", "world size of 2"});
}

TEST(RankRegister, AnotherPoolSizeNamesBothSides) {
  expect_named(complaint([](StepReport& report) { report.topology->num_blocks = 999; }),
               {"rank 1", "GPU blocks 999", "told 1000"});
}

TEST(RankRegister, AnotherBlockSizeNamesBothSides) {
  expect_named(complaint([](StepReport& report) { report.topology->classes[0].slot_bytes = 4096; }),
               {"rank 1", "bytes per block 4096", "told 2048"});
}

TEST(RankRegister, ARankWhoseBlocksAreNotToldHasTheBytesThatItSays) {
  SchedulerOptions options = told();
  options.classes = {{2, {4096, 0}}, {8, {1024, 0}}};
  RankRegister ranks(options);
  StepReport report = first_report(1);
  // A later stage, whose second class has the larger blocks.
  report.topology->classes = {{512, 2}, {2048, 8}};
  ranks.take(report);
  EXPECT_EQ(ranks.num_ready(), 1U);
  report = first_report(0);
  report.topology->classes = {{4096, 2}, {512, 8}};
  EXPECT_THROW(ranks.take(report), TopologyError);
  report.topology->classes[1].slot_bytes = 1024;
  ranks.take(report);
  EXPECT_TRUE(ranks.all_ready());
}

TEST(RankRegister, EveryRankHasTheSlotsOfAChunkThatAreTold) {
  SchedulerOptions options = told();
  options.classes = {{2, {4096, 0}}, {8, {1024, 0}}};
  RankRegister ranks(options);
  StepReport report = first_report(1);
  report.topology->classes = {{512, 2}, {2048, 4}};
  try {
    ranks.take(report);
    FAIL() << "a rank divides its chunks otherwise";
  } catch (const TopologyError& error) {
    expect_named(error.what(), {"rank 1", "slots per chunk 4", "told 8"});
  }
}

TEST(RankRegister, RanksThatShareAnArenaOtherwiseThanToldNameBothSides) {
  expect_named(complaint([](StepReport& report) {
                 report.topology->replicas = {2, 1};
               }),
               {"rank 1", "ranks that share its KV cache 2", "told 1"});
  SchedulerOptions options = told();
  options.replicas = {{2, 0}, {2, 1}};
  RankRegister ranks(options);
  StepReport report = first_report(1);
  report.topology->replicas = {2, 0};
  try {
    ranks.take(report);
    FAIL() << "rank 1 passes for the first one";
  } catch (const TopologyError& error) {
    expect_named(error.what(), {"rank 1", "the place among them 0", "told 1"});
  }
  report.topology->replicas = {2, 1};
  ranks.take(report);
  EXPECT_EQ(ranks.num_ready(), 1U);
}

TEST(RankRegister, ASecondWorkerUnderOneRankIsRefused) {
  expect_named(complaint([](StepReport& report) { report = first_report(0); }),
               {"rank 0", "registered twice"});
}

TEST(RankRegister, ARankWithoutSlotsIsRefused) {
  expect_named(complaint([](StepReport& report) { report.topology->num_chunks = 0; }),
               {"rank 1", "0 slots of 450 slots"});
  expect_named(complaint([](StepReport& report) { report.topology->max_chunks = 399; }),
               {"rank 1", "400 slots of 399 slots"});
}

}  // namespace
}  // namespace kvferry::connector
