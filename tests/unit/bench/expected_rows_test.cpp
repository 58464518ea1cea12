// SPDX-License-Identifier: Apache-2.0
// What the performance model makes of rows and devices.
#include "expect/expected_rows.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/cuda_device.hpp"

#include "byte_sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace kvferry::bench {
namespace {

TEST(ExpectedRows, OfKnownGpusAreWhatOthersMeasured) {
  // vLLM blog 2026-01-08, H100, one call per block, d2h: 0.9, 29 and 46 GB/s. The model's constants
  // are of there; this holds them together.
  const DeviceProfile h100 = profile_from("h100-sxm");
  const auto per_run = [&](std::uint64_t bytes) {
    CopyRowOptions row;
    row.traffic = Traffic::kDeviceToHost;
    row.placement = {1};
    row.fragment_bytes = bytes;
    row.count = 512;
    return expected_copy(h100, row).gb_per_s;
  };
  EXPECT_NEAR(per_run(4 * kKiB), 0.9, 0.2);
  EXPECT_NEAR(per_run(256 * kKiB), 29, 3);
  EXPECT_NEAR(per_run(2 * kMiB), 46, 3);
}

TEST(ExpectedRows, NeighboursAreOneCopy) {
  const DeviceProfile h100 = profile_from("h100-sxm");
  CopyRowOptions row;
  row.fragment_bytes = 4 * kKiB;
  row.count = 512;
  row.placement = {1};
  const double shuffled = expected_copy(h100, row).gb_per_s;
  row.placement = {8};
  const double runs = expected_copy(h100, row).gb_per_s;
  row.placement = {0};
  const double contiguous = expected_copy(h100, row).gb_per_s;
  EXPECT_NEAR(runs / shuffled, 7, 1.5);
  EXPECT_GT(contiguous, 20);
}

// Small fragments are packed, whole blocks are not.
TEST(ExpectedRows, OfLoadsTakeTheFastestPath) {
  const DeviceProfile h100 = profile_from("h100-sxm");
  const PipelineSubject load{Traffic::kHostToDevice, std::nullopt, std::nullopt};
  std::vector<std::string> fastest;
  for (const char* shape : {"64x8KiB", "1x2MiB"}) {
    PipelineOptions options;
    options.fragments = shape;
    const PipelineSettings free = pipeline_settings(options, {});
    double best = 0;
    for (const char* path : {"staged", "batch", "kernel", "per_run"}) {
      options.path = path;
      const PipelineSettings forced = pipeline_settings(options, {});
      const double rate = expected_pipeline(h100, forced, load, std::nullopt).gb_per_s;
      if (rate > best) fastest.emplace_back(path);
      best = std::max(best, rate);
    }
    EXPECT_EQ(expected_pipeline(h100, free, load, std::nullopt).gb_per_s, best) << shape;
  }
  EXPECT_EQ(fastest, (std::vector<std::string>{"staged", "staged", "batch"}));
}

TEST(ExpectedRows, OfStoresTakeTheLimit) {
  const DeviceProfile h100 = profile_from("h100-sxm");
  const PipelineSettings settings = pipeline_settings({}, {});
  const PipelineSubject limited{Traffic::kDeviceToHost, 4e9, std::nullopt};
  const Expected beside = expected_pipeline(h100, settings, limited, gpu::CoRunKind::kGemm);
  EXPECT_NEAR(beside.gb_per_s, 4, 1e-9);
  EXPECT_EQ(beside.bound, Bound::kLimit);
  // A gather: 2 x 4 of 3,015 GB/s, and a launch of 2 us in 4 ms.
  EXPECT_NEAR(*beside.slow_down_percent, 0.265 + 0.05, 0.002);
}

// What is submitted ahead bounds them: 512 MiB of ring, or of plans, for four iterations of 4 ms.
TEST(ExpectedRows, BesideWorkAreBoundByWhatIsUnderWay) {
  const DeviceProfile h100 = profile_from("h100-sxm");
  const PipelineSettings settings = pipeline_settings({}, {});
  const PipelineSubject store{Traffic::kDeviceToHost, std::nullopt, std::nullopt};
  const Expected beside = expected_pipeline(h100, settings, store, gpu::CoRunKind::kStream);
  EXPECT_EQ(beside.bound, Bound::kWaits);
  EXPECT_NEAR(beside.gb_per_s, 512 * 1048576 / 16e-3 / 1e9, 1e-9);
  EXPECT_NEAR(expected_pipeline(h100, settings, store, std::nullopt).gb_per_s, h100.d2h_gb_per_s,
              2);
  // A plan of 256 MiB takes longer than half an iteration, which holds it for longer.
  const PipelineSubject load{Traffic::kHostToDevice, std::nullopt, std::nullopt};
  const Expected loads = expected_pipeline(h100, settings, load, gpu::CoRunKind::kStream);
  EXPECT_EQ(loads.bound, Bound::kWaits);
  EXPECT_NEAR(loads.gb_per_s, 512 * 1048576 / (16e-3 + 5.15e-3 - 2e-3) / 1e9, 0.5);
  // On a stream of its own no gather stands behind it.
  PipelineOptions own;
  own.place = "own";
  EXPECT_EQ(
      expected_pipeline(h100, pipeline_settings(own, {}), store, gpu::CoRunKind::kStream).bound,
      Bound::kLink);
}

TEST(ExpectedRows, ARowIsMarkedWhereItIsOff) {
  const auto mark = [](double gb_per_s, std::optional<double> slow_down,
                       double expected_slow_down) {
    TransferRow row;
    row.gb_per_s = gb_per_s;
    row.slow_down_percent = slow_down;
    set_expected(row, {10, Bound::kCalls, expected_slow_down});
    EXPECT_EQ(row.expected_gb_per_s, 10);
    EXPECT_EQ(row.bound_by, "calls");
    return row.off_model;
  };
  EXPECT_EQ(mark(8.1, std::nullopt, 0), "");
  EXPECT_EQ(mark(11.9, std::nullopt, 0), "");
  EXPECT_EQ(mark(7.9, std::nullopt, 0), "slower");
  EXPECT_EQ(mark(12.1, std::nullopt, 0), "faster");
  // Of a few percent, one percent of an iteration is nothing.
  EXPECT_EQ(mark(10, 1.2, 0.3), "");
  EXPECT_EQ(mark(10, -0.6, 0.3), "");
  EXPECT_EQ(mark(10, 1.4, 0.3), "costs more");
  // Of many, a fifth.
  EXPECT_EQ(mark(10, 11.9, 10), "");
  EXPECT_EQ(mark(10, 7.9, 10), "costs less");
  EXPECT_EQ(mark(7, 12.1, 10), "slower and costs more");
}

TEST(DeviceProfile, OfAMeasuredRunHasItsPeaks) {
  gpu::DriverOptions driver;
  driver.library = KVFERRY_FAKE_CUDA;
  constexpr std::array<std::byte, 1> kImage{};
  driver.kernel_image = kImage;
  const auto device = gpu::make_cuda_device(0, driver);
  DeviceProfile profile = measured_profile(*device, {1, 50, 40, 60, 3000});
  EXPECT_EQ(profile.family, device->traits().family);
  EXPECT_EQ(profile.h2d_gb_per_s, 50);
  EXPECT_EQ(profile.d2h_gb_per_s, 40);
  EXPECT_EQ(profile.both_gb_per_s, 60);
  EXPECT_EQ(profile.memory_gb_per_s, 3000);
  EXPECT_EQ(profile.num_multiprocessors, device->traits().num_multiprocessors);
  EXPECT_GT(device->traits().num_multiprocessors, 0U);
  // Not measured: bounds nothing.
  profile = measured_profile(*device, {1, 50, 40, 60, std::nullopt});
  LaneWork store{.direction = gpu::CopyDirection::kDeviceToHost, .path = gpu::CopyPath::kStaged};
  store.bytes = 1024 * kMiB;
  store.fragment_bytes = store.run_bytes = store.piece_bytes = store.fill_bytes = 512 * kMiB;
  EXPECT_NEAR(expect(profile, {{store}, std::nullopt}).gb_per_s, 40, 0.1);
}

TEST(DeviceProfile, UnknownNamesAreRefusedWithTheKnownOnes) {
  EXPECT_EQ(profile_from("mi300x").family, gpu::DeviceFamily::kHip);
  try {
    static_cast<void>(profile_from("h1000"));
    FAIL();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'h1000' is not a known GPU"), std::string::npos) << text;
    EXPECT_NE(text.find("h100-sxm, h200"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace kvferry::bench
