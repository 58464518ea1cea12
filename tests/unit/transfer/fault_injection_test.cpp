// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::transfer {
namespace {

class FaultInjectionTest : public TransferTest,
                           public ::testing::WithParamInterface<gpu::CopyPath> {
 protected:
  static constexpr std::uint32_t kBlocks = 6;

  static RigOptions options() {
    return {.transfer = {.staging_bytes = 12 * Rig::kSlotBytes,
                         .max_in_flight_bytes = 4 * Rig::kSlotBytes,
                         .piece_bytes = 2 * Rig::kSlotBytes,
                         .copy_path = GetParam(),
                         .load_staging_bytes = 4 * Rig::kSlotBytes}};
  }

  /// Two stores and two loads, one of each over several pieces and one cancelled; then one of each
  /// again, because the engine goes on after a failure. Whatever failed: all end, once, and what is
  /// done is right.
  static void run_scenario(Rig& rig) {
    for (std::uint32_t i = 0; i < 40; ++i) {
      rig.write_block(Rig::kStrided, BlockId(i), 1000 + i);
      rig.write_slot(Rig::kStrided, SlotId(80 + i), 2000 + i);
    }
    std::map<std::uint64_t, std::uint32_t> gathered;
    for (const std::uint32_t id : {1, 2}) {
      gathered[id] = rig.store(id, Rig::kStrided, blocks_to_slots(8 * id, 8 * id, kBlocks));
    }
    for (const std::uint32_t id : {3, 4}) {
      rig.load(id, Rig::kStrided, blocks_to_slots(8 * id, 80 + 8 * id, kBlocks));
    }
    rig.engine->cancel(TransferId(2));
    rig.engine->cancel(TransferId(4));
    check(rig, rig.finish(), gathered);

    gathered = {{1, rig.store(1, Rig::kStrided, blocks_to_slots(8, 40, kBlocks))}};
    rig.load(3, Rig::kStrided, blocks_to_slots(32, 80 + 32, kBlocks));
    EXPECT_TRUE(rig.engine->close(kForever));
    EXPECT_LE(rig.engine->poll().size(), 2U);
  }

  static void check(const Rig& rig, const std::vector<Completion>& ends,
                    const std::map<std::uint64_t, std::uint32_t>& gathered) {
    std::map<std::uint64_t, Completion> by_id;
    for (const Completion& end : ends) {
      EXPECT_TRUE(by_id.emplace(end.transfer.value(), end).second) << "ended twice";
      EXPECT_EQ(end.outcome == Outcome::kFailed, !end.reason.empty());
    }
    bool doubtful = false;
    for (const auto& [id, num_blocks] : gathered) {
      EXPECT_EQ(by_id.contains(id), num_blocks != 0);
      if (num_blocks == 0) continue;
      doubtful |= by_id.at(id).reason.starts_with("gather");
      if (by_id.at(id).outcome != Outcome::kDone) continue;
      for (std::uint32_t i = 0; i < num_blocks; ++i) {
        const auto at = static_cast<std::uint32_t>(8 * id + i);
        EXPECT_EQ(rig.slot(Rig::kStrided, SlotId(at)), pattern_bytes(1000 + at, 128));
      }
    }
    for (const std::uint32_t id : {3, 4}) {
      ASSERT_TRUE(by_id.contains(id));
      if (by_id.at(id).outcome != Outcome::kDone) continue;
      for (std::uint32_t i = 0; i < kBlocks; ++i) {
        EXPECT_EQ(rig.block(Rig::kStrided, BlockId(8 * id + i)),
                  pattern_bytes(2000 + 8 * id + i, 128));
      }
    }
    const TransferStats stats = rig.engine->stats();
    // Ring memory may stay behind only where nothing could prove that a gather ended.
    if (!doubtful) {
      EXPECT_EQ(stats.ring_used_bytes, 0U);
    }
    EXPECT_EQ(stats.load_staging_used_bytes, 0U);
    EXPECT_EQ(stats.queued_bytes, 0U);
    EXPECT_EQ(stats.in_flight_bytes, 0U);
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, FaultInjectionTest,
                         ::testing::Values(gpu::CopyPath::kPerRun, gpu::CopyPath::kBatch,
                                           gpu::CopyPath::kKernel, gpu::CopyPath::kStaged),
                         [](const ::testing::TestParamInfo<gpu::CopyPath>& instance) {
                           return std::string(gpu::to_string(instance.param));
                         });

// Fails the 1st, 2nd, ... n-th operation, of ours and of the device's, until none fails.
TEST_P(FaultInjectionTest, NothingLeaksOrHangsWhicheverOperationFails) {
  std::uint64_t num_refused_constructions = 0;
  std::uint64_t n = 0;
  bool failed = true;
  while (failed) {
    ++n;
    SCOPED_TRACE("fault passage " + std::to_string(n));
    test_hooks::reset();
    test_hooks::fail_nth(n);
    try {
      Rig rig(options());
      run_scenario(rig);
    } catch (const Error&) {
      // Only the construction may throw: a device error of a transfer is in its Completion.
      EXPECT_EQ(num_refused_constructions + 1, n);
      ++num_refused_constructions;
    }
    ASSERT_FALSE(HasFailure());
    failed = test_hooks::num_fault_passages() >= n;
  }
  EXPECT_GT(num_refused_constructions, 0U);
  EXPECT_GT(n, num_refused_constructions + 50) << "too few passages for the scenario";
  // The last run failed nothing, so it came past every point of ours.
  const std::vector<std::string> names = test_hooks::fault_names();
  for (const char* point : {"transfer.gather", "transfer.record_gather", "transfer.fence",
                            "transfer.submit", "transfer.record"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), point), names.end()) << point;
  }
}

}  // namespace
}  // namespace kvferry::transfer
