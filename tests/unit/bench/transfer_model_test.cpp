// SPDX-License-Identifier: Apache-2.0
// The performance model: limiting cases by hand, and what holds for every input.
#include "expect/transfer_model.hpp"

#include "byte_sizes.hpp"
#include "expect/expected_rows.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

namespace kvferry::bench {
namespace {

using gpu::CopyDirection;
using gpu::CopyPath;

constexpr auto kLoad = CopyDirection::kHostToDevice;
constexpr auto kStore = CopyDirection::kDeviceToHost;

// Long: what a gather's launch adds to each is nothing.
constexpr double kIterationUs = 1e9;

/// 50 GB/s are 20 us for each MB.
DeviceProfile device() {
  return {.name = "made up",
          .family = gpu::DeviceFamily::kCuda90,
          .h2d_gb_per_s = 50,
          .d2h_gb_per_s = 40,
          .both_gb_per_s = 60,
          .memory_gb_per_s = 2000,
          .num_multiprocessors = 100};
}

LaneWork lane(CopyDirection direction, CopyPath path, std::uint64_t bytes, std::uint64_t run) {
  LaneWork lane{.direction = direction, .path = path, .bytes = bytes};
  lane.fragment_bytes = run;
  lane.run_bytes = run;
  lane.piece_bytes = bytes;
  return lane;
}

double rate(const LaneWork& work) { return expect(device(), {{work}, std::nullopt}).gb_per_s; }
Bound bound(const LaneWork& work) { return expect(device(), {{work}, std::nullopt}).bound; }

TEST(TransferModel, LargeCopiesGoAtTheRateOfTheLink) {
  for (const CopyPath path : {CopyPath::kPerRun, CopyPath::kBatch}) {
    const LaneWork load = lane(kLoad, path, 1024 * kMiB, 512 * kMiB);
    EXPECT_NEAR(rate(load), 50, 0.1);
    EXPECT_EQ(bound(load), Bound::kLink);
    EXPECT_NEAR(rate(lane(kStore, path, 1024 * kMiB, 512 * kMiB)), 40, 0.1);
  }
}

TEST(TransferModel, SmallCopiesOneByOneAreBoundByTheirCalls) {
  const CallCosts& costs = device().costs();
  const LaneWork work = lane(kLoad, CopyPath::kPerRun, 4 * kMiB, 4 * kKiB);
  // 4 KiB take 0.082 us on the link, and the engine begins 1,024 times.
  const double time_us = 1024 * (costs.copy_start_us + 4096 / 50e3) + costs.copy_call_us;
  EXPECT_NEAR(rate(work), 4 * 1048576 / time_us / 1e3, 1e-9);
  EXPECT_EQ(bound(work), Bound::kCalls);
}

// The engine of each direction begins copies, but one thread submits them.
TEST(TransferModel, BothDirectionsShareTheSubmittingThread) {
  const CallCosts& costs = device().costs();
  TransferWork both{{lane(kLoad, CopyPath::kBatch, 64 * kMiB, 32 * kKiB),
                     lane(kStore, CopyPath::kBatch, 64 * kMiB, 32 * kKiB)},
                    std::nullopt};
  // 2 x 2,048 entries; on the link each takes 32 KiB / 30 GB/s = 1.09 us + 0.1.
  const double link_us = costs.batch_start_us + 2048 * (costs.entry_start_us + 32768 / 30e3);
  const double submit_us = 2 * (costs.batch_call_us + 2048 * costs.entry_call_us);
  ASSERT_GT(submit_us, link_us);
  EXPECT_NEAR(expect(device(), both).gb_per_s,
              2 * 64 * 1048576 / (submit_us + costs.batch_call_us) / 1e3, 1e-9);
  EXPECT_EQ(expect(device(), both).bound, Bound::kCalls);
}

TEST(TransferModel, BothDirectionsShareWhatTheLinkGivesToBoth) {
  TransferWork both{{lane(kLoad, CopyPath::kPerRun, 1024 * kMiB, 512 * kMiB),
                     lane(kStore, CopyPath::kPerRun, 1024 * kMiB, 512 * kMiB)},
                    std::nullopt};
  EXPECT_NEAR(expect(device(), both).gb_per_s, 60, 0.1);
  both.lanes[1].limit_gb_per_s = 4;
  // Alone the slower direction counts: twice the limit.
  EXPECT_NEAR(expect(device(), both).gb_per_s, 8, 0.01);
  EXPECT_EQ(expect(device(), both).bound, Bound::kLimit);
  // Beside work the load goes on: what the link gives to both less the store's part, or its peak.
  both.beside = BesideWork{.iteration_us = kIterationUs};
  EXPECT_NEAR(expect(device(), both).gb_per_s, 50 + 4, 0.1);
}

TEST(TransferModel, SmallEntriesOfBatchesAreSlowTowardsTheDeviceOnly) {
  const CallCosts& costs = device().costs();
  const LaneWork load = lane(kLoad, CopyPath::kBatch, 64 * kMiB, 16 * kKiB);
  EXPECT_NEAR(rate(load), costs.slow_entry_gb_per_s, 0.1);
  EXPECT_EQ(bound(load), Bound::kCalls);
  EXPECT_GT(rate(lane(kLoad, CopyPath::kBatch, 64 * kMiB, 28 * kKiB)), 30);
  EXPECT_GT(rate(lane(kStore, CopyPath::kBatch, 64 * kMiB, 16 * kKiB)), 20);
}

TEST(TransferModel, APieceThatIsPackedFirstIsPaidOnce) {
  const CallCosts& costs = device().costs();
  LaneWork store = lane(kStore, CopyPath::kStaged, 64 * kMiB, 8 * kMiB);
  store.piece_bytes = 8 * kMiB;
  store.fill_bytes = 8 * kMiB;
  // 8 copies; before the first one 16 MiB cross the device's memory.
  const double copies_us = 64 * 1048576 / 40e3 + 8 * (costs.copy_start_us + costs.wait_us);
  const double fill_us =
      costs.launch_call_us + costs.launch_start_us + costs.wait_us + 16 * 1048576 / 2000e3;
  EXPECT_NEAR(rate(store), 64 * 1048576 / (copies_us + fill_us) / 1e3, 1e-9);
  EXPECT_EQ(bound(store), Bound::kLink);
}

TEST(TransferModel, ASlowMemoryBoundsWhatIsPackedByHalfItsRate) {
  DeviceProfile slow = device();
  slow.memory_gb_per_s = 20;
  LaneWork store = lane(kStore, CopyPath::kStaged, 1024 * kMiB, 8 * kMiB);
  store.piece_bytes = 8 * kMiB;
  const Expected expected = expect(slow, {{store}, std::nullopt});
  EXPECT_NEAR(expected.gb_per_s, 10, 0.1);
  EXPECT_EQ(expected.bound, Bound::kMemory);
  // Not packed, not bound by it.
  EXPECT_NEAR(expect(slow, {{lane(kStore, CopyPath::kBatch, 1024 * kMiB, 8 * kMiB)}, std::nullopt})
                  .gb_per_s,
              40, 0.1);
}

// Measured on an H100 (bench/RESULTS.md): 35.5 and 45.0 of 51.6 GB/s with 4 and 8 KiB in a row.
TEST(TransferModel, KernelsGetAPartOfTheLinkByTheirFragments) {
  LaneWork load = lane(kLoad, CopyPath::kKernel, 1024 * kMiB, 4 * kKiB);
  EXPECT_NEAR(rate(load) / 50, 35.5 / 51.6, 0.05);
  EXPECT_EQ(bound(load), Bound::kMultiprocessors);
  load.fragment_bytes = 8 * kKiB;
  EXPECT_NEAR(rate(load) / 50, 45.0 / 51.6, 0.09);
  // Beside work a launch waits for a multiprocessor.
  load.piece_bytes = 8 * kMiB;
  const double alone = rate(load);
  const TransferWork beside{{load},
                            BesideWork{.iteration_us = 4000, .held_us = 0, .launch_us = 100}};
  const double time_us = 8 * 1048576 / alone / 1e3;
  EXPECT_NEAR(expect(device(), beside).gb_per_s, alone * time_us / (time_us + 50), 0.1);
}

// 64 CTAs of 32 KiB in 2 us.
TEST(TransferModel, AFastLinkIsBoundByTheFewCtasOfAScatter) {
  DeviceProfile fast = device();
  fast.h2d_gb_per_s = 1800;
  fast.memory_gb_per_s = 8000;
  LaneWork load = lane(kLoad, CopyPath::kStaged, 1024 * kMiB, 32 * kMiB);
  load.piece_bytes = 32 * kMiB;
  const Expected expected = expect(fast, {{load}, std::nullopt});
  EXPECT_NEAR(expected.gb_per_s, 1'049, 100);
  EXPECT_EQ(expected.bound, Bound::kMultiprocessors);
}

// Two scatters wait at once, so that each piece pays for half a wait.
TEST(TransferModel, AStagedLoadBesideWorkWaitsForMultiprocessorsOnTwoStreams) {
  LaneWork load = lane(kLoad, CopyPath::kStaged, 1024 * kMiB, 8 * kMiB);
  load.piece_bytes = 8 * kMiB;
  const BesideWork work{.iteration_us = 4'000, .held_us = 0, .launch_us = 4'000};
  const Expected expected = expect(device(), {{load}, work});
  EXPECT_NEAR(expected.gb_per_s, 8 * 1048576 / 1e3 / (1'000 + 8), 0.1);
  EXPECT_EQ(expected.bound, Bound::kMultiprocessors);
}

TEST(TransferModel, AWindowOfBytesUnderWayBoundsTheRateBesideWork) {
  LaneWork store = lane(kStore, CopyPath::kStaged, 1024 * kMiB, 8 * kMiB);
  store.piece_bytes = 8 * kMiB;
  store.window_bytes = 100e6;
  const BesideWork work{.iteration_us = 4'000, .held_us = 10'000};
  const Expected expected = expect(device(), {{store}, work});
  EXPECT_NEAR(expected.gb_per_s, 10, 1e-6);
  EXPECT_EQ(expected.bound, Bound::kWaits);
  // A unit that takes longer than half an iteration is held for longer: 100 MB at about 40 GB/s.
  store.unit_bytes = 100e6;
  EXPECT_NEAR(expect(device(), {{store}, work}).gb_per_s, 100e6 / (10'000 + 2'580 - 2'000) / 1e3,
              0.1);
}

/// The slow-down by 10 GB/s.
double slow_down(const LaneWork& work, gpu::CoRunKind kind,
                 BesideWork::Gathers gathers = BesideWork::Gathers::kBetween) {
  LaneWork slow = work;
  slow.limit_gb_per_s = 10;
  return *expect(device(), {{slow}, BesideWork{kind, gathers, kIterationUs, 0, 100}})
              .slow_down_percent;
}

// 10 of 2,000 GB/s are half a percent.
TEST(TransferModel, AnIterationPaysForItsGathersAndSharesTheMemory) {
  const LaneWork store = lane(kStore, CopyPath::kStaged, 1024 * kMiB, 8 * kMiB);
  // Read and written by the gather; the copy's read meets what is bound by memory only.
  EXPECT_NEAR(slow_down(store, gpu::CoRunKind::kGemm), 100 * (1 / 0.99 - 1), 0.01);
  EXPECT_NEAR(slow_down(store, gpu::CoRunKind::kStream), 100 * (1 / (0.99 * 0.995) - 1), 0.01);
  // Beside: half of all threads for 1 % of the time; three touches of the memory.
  constexpr auto kBeside = BesideWork::Gathers::kBeside;
  EXPECT_NEAR(slow_down(store, gpu::CoRunKind::kGemm, kBeside), 100 * (1 / 0.995 - 1), 0.01);
  EXPECT_NEAR(slow_down(store, gpu::CoRunKind::kStream, kBeside), 100 * (1 / 0.985 - 1), 0.01);
}

TEST(TransferModel, LoadsByCopyEnginesCostArithmeticNothing) {
  const LaneWork by_copies = lane(kLoad, CopyPath::kBatch, 1024 * kMiB, 8 * kMiB);
  EXPECT_EQ(slow_down(by_copies, gpu::CoRunKind::kGemm), 0);
  EXPECT_NEAR(slow_down(by_copies, gpu::CoRunKind::kStream), 100 * (1 / 0.995 - 1), 1e-9);
  // 16 CTAs of 256 threads on 100 multiprocessors of 2,048 are 2 %, all the time.
  const LaneWork by_kernel = lane(kLoad, CopyPath::kKernel, 1024 * kMiB, 8 * kMiB);
  EXPECT_NEAR(slow_down(by_kernel, gpu::CoRunKind::kGemm), 100 * (1 / 0.98 - 1), 1e-9);
  // Behind staging 64 of one warp have 1,049 GB/s, so that 10 take them for a part of the time.
  const LaneWork staged = lane(kLoad, CopyPath::kStaged, 1024 * kMiB, 8 * kMiB);
  EXPECT_NEAR(slow_down(staged, gpu::CoRunKind::kGemm), 10 / 1048.576, 1e-3);
  EXPECT_NEAR(slow_down(staged, gpu::CoRunKind::kStream), 100 * (1 / 0.985 - 1), 1e-9);
}

class RandomWork : public testing::Test {
 protected:
  double between(double least, double most) {
    return std::exp(std::uniform_real_distribution<>(std::log(least), std::log(most))(random_));
  }
  std::uint64_t size(double least, double most) {
    return static_cast<std::uint64_t>(between(least, most));
  }
  DeviceProfile any_device() {
    DeviceProfile device;
    device.family = random_() % 2 == 0 ? gpu::DeviceFamily::kHip : gpu::DeviceFamily::kCuda90;
    device.h2d_gb_per_s = between(1, 1000);
    device.d2h_gb_per_s = between(1, 1000);
    const double sum = device.h2d_gb_per_s + device.d2h_gb_per_s;
    device.both_gb_per_s = sum * between(0.5, 1);
    device.memory_gb_per_s = between(10, 10'000);
    device.num_multiprocessors = static_cast<std::uint32_t>(size(1, 300));
    return device;
  }
  LaneWork any_lane(CopyDirection direction) {
    LaneWork lane{.direction = direction};
    lane.path = std::array{CopyPath::kPerRun, CopyPath::kBatch, CopyPath::kKernel,
                           CopyPath::kStaged}[random_() % 4];
    lane.run_bytes = size(1, 1e7);
    lane.fragment_bytes = lane.run_bytes;
    lane.piece_bytes = lane.run_bytes * size(1, 1e4);
    lane.bytes = lane.piece_bytes * size(1, 1e3);
    lane.fill_bytes = random_() % 2 == 0 ? 0 : lane.piece_bytes;
    if (random_() % 2 == 0) lane.limit_gb_per_s = between(0.1, 100);
    if (random_() % 2 == 0) lane.window_bytes = between(1e3, 1e10);
    if (random_() % 2 == 0) lane.unit_bytes = between(1e3, 1e10);
    return lane;
  }
  TransferWork any_work() {
    TransferWork work;
    const auto directions = random_() % 3;
    if (directions != 0) work.lanes.push_back(any_lane(kStore));
    if (directions != 1) work.lanes.push_back(any_lane(kLoad));
    // As in every row: both directions of one size.
    for (LaneWork& lane : work.lanes) lane.bytes = work.lanes.front().bytes;
    if (random_() % 2 == 0) {
      work.beside = BesideWork{
          random_() % 2 == 0 ? gpu::CoRunKind::kGemm : gpu::CoRunKind::kStream,
          random_() % 2 == 0 ? BesideWork::Gathers::kBetween : BesideWork::Gathers::kBeside,
          between(100, 1e5), between(1, 1e5), between(1, 1000)};
    }
    return work;
  }

  std::mt19937_64 random_{25};
  static constexpr double kRounding = 1 + 1e-9;
};

TEST_F(RandomWork, IsNeverExpectedAboveAPeakOrALimit) {
  for (int i = 0; i < 20'000; ++i) {
    const DeviceProfile device = any_device();
    const TransferWork work = any_work();
    const Expected expected = expect(device, work);
    ASSERT_TRUE(std::isfinite(expected.gb_per_s)) << i;
    ASSERT_GT(expected.gb_per_s, 0) << i;
    double most = 0;
    for (const LaneWork& lane : work.lanes) {
      most += std::min(lane.direction == kLoad ? device.h2d_gb_per_s : device.d2h_gb_per_s,
                       lane.limit_gb_per_s);
    }
    if (work.lanes.size() > 1) most = std::min(most, device.both_gb_per_s);
    ASSERT_LE(expected.gb_per_s, most * kRounding) << i;
    ASSERT_EQ(expected.slow_down_percent.has_value(), work.beside.has_value());
    if (!work.beside) continue;
    ASSERT_TRUE(std::isfinite(*expected.slow_down_percent)) << i;
    ASSERT_GE(*expected.slow_down_percent, 0) << i;
  }
}

TEST_F(RandomWork, IsExpectedNoSlowerOnAFasterLinkOrMemory) {
  for (int i = 0; i < 20'000; ++i) {
    const DeviceProfile device = any_device();
    const TransferWork work = any_work();
    const double before = expect(device, work).gb_per_s;
    DeviceProfile faster = device;
    const double factor = between(1, 10);
    faster.h2d_gb_per_s *= factor;
    faster.d2h_gb_per_s *= factor;
    faster.both_gb_per_s *= factor;
    faster.memory_gb_per_s *= between(1, 10);
    ASSERT_GE(expect(faster, work).gb_per_s * kRounding, before) << i;
  }
}

// Twice as large runs of the same bytes. Where batch entries stop to be slow there is a step up.
TEST_F(RandomWork, IsExpectedNoSlowerInLargerFragments) {
  for (int i = 0; i < 20'000; ++i) {
    const DeviceProfile device = any_device();
    TransferWork work = any_work();
    for (LaneWork& lane : work.lanes) lane.piece_bytes *= 2;
    const double before = expect(device, work).gb_per_s;
    for (LaneWork& lane : work.lanes) {
      lane.run_bytes *= 2;
      lane.fragment_bytes *= 2;
    }
    ASSERT_GE(expect(device, work).gb_per_s * kRounding, before) << i;
  }
}

}  // namespace
}  // namespace kvferry::bench
