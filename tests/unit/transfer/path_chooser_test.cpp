// SPDX-License-Identifier: Apache-2.0
#include "path_chooser.hpp"

#include "byte_sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

namespace kvferry::transfer {
namespace {

using gpu::CopyPath;
using gpu::DeviceFamily;

const gpu::DeviceTraits kHost{.family = DeviceFamily::kHost};
const gpu::DeviceTraits kCudaOlder{.family = DeviceFamily::kCudaOlder};
const gpu::DeviceTraits kCuda90{.family = DeviceFamily::kCuda90};
const gpu::DeviceTraits kHip{.family = DeviceFamily::kHip, .batches_by_default = false};

constexpr auto kToHost = gpu::CopyDirection::kDeviceToHost;
constexpr auto kToDevice = gpu::CopyDirection::kHostToDevice;
const CopyPaths kAll{CopyPath::kPerRun, CopyPath::kBatch, CopyPath::kKernel, CopyPath::kStaged};
const CopyPaths kCalls{CopyPath::kPerRun, CopyPath::kBatch};

CopyShape shape(gpu::CopyDirection direction, std::size_t num_runs, std::uint64_t run_bytes) {
  return {direction, num_runs, num_runs * run_bytes};
}

/// The time that gives `shape` this rate.
std::chrono::nanoseconds at_rate(const CopyShape& of, double bytes_per_second) {
  return std::chrono::nanoseconds(
      std::llround(static_cast<double>(of.total_bytes) / bytes_per_second * 1e9));
}

TEST(PathChooser, OneRunIsOneCall) {
  for (const gpu::DeviceTraits& traits : {kHost, kCudaOlder, kCuda90, kHip}) {
    PathChooser chooser(traits, std::nullopt);
    EXPECT_EQ(chooser.choose(shape(kToHost, 1, 1024 * kKiB), kCalls), CopyPath::kPerRun);
  }
}

// vllm#42212: the batch call to a device is slow below 28 KiB a run, and one call per run slower.
TEST(PathChooser, SmallFragmentsAreStagedAndLargeOnesAreNot) {
  PathChooser chooser(kCuda90, std::nullopt);
  for (const std::uint64_t bytes : {kKiB, 4 * kKiB, 16 * kKiB, 32 * kKiB}) {
    const CopyShape small = shape(kToDevice, 500, bytes);
    EXPECT_EQ(chooser.choose(small, kAll), CopyPath::kStaged) << bytes;
    EXPECT_EQ(chooser.choose(small, {CopyPath::kPerRun, CopyPath::kBatch, CopyPath::kKernel}),
              bytes < 32 * kKiB ? CopyPath::kKernel : CopyPath::kBatch)
        << bytes;
    EXPECT_EQ(chooser.choose(small, kCalls), CopyPath::kBatch) << bytes;
    EXPECT_EQ(chooser.choose(small, {CopyPath::kPerRun}), CopyPath::kPerRun);
  }
  EXPECT_EQ(chooser.choose(shape(kToDevice, 500, 64 * kKiB), kAll), CopyPath::kBatch);
  EXPECT_EQ(chooser.choose(shape(kToDevice, 500, 2048 * kKiB), kAll), CopyPath::kBatch);
}

// sglang#31741: the batch call of HIP is no gain.
TEST(PathChooser, HipTakesSingleCallsWhereNoKernelCanBeHad) {
  PathChooser chooser(kHip, std::nullopt);
  EXPECT_EQ(chooser.choose(shape(kToHost, 100, 32 * kKiB), kCalls), CopyPath::kPerRun);
  EXPECT_EQ(chooser.choose(shape(kToDevice, 100, 16 * kKiB),
                           {CopyPath::kPerRun, CopyPath::kBatch, CopyPath::kKernel}),
            CopyPath::kKernel);
}

TEST(PathChooser, FewBytesAreNotWorthTwoSubmissions) {
  PathChooser chooser(kCuda90, std::nullopt);
  EXPECT_EQ(chooser.choose(shape(kToDevice, 16, 8 * kKiB), kAll), CopyPath::kKernel);
}

TEST(PathChooser, WhatIsBestScatteredIsScattered) {
  PathChooser chooser(kHost, std::nullopt);
  CopyShape large = shape(kToDevice, 100, 1024 * kKiB);
  EXPECT_EQ(chooser.choose(large, kAll), CopyPath::kBatch);
  large.is_best_scattered = true;
  EXPECT_EQ(chooser.choose(large, kAll), CopyPath::kKernel);
  EXPECT_EQ(chooser.choose(large, kCalls), CopyPath::kBatch);
  PathChooser forced(kHost, CopyPath::kPerRun);
  EXPECT_EQ(forced.choose(large, kAll), CopyPath::kPerRun);
}

TEST(PathChooser, ForcedPathIsTakenWhereverThePieceCanGoIt) {
  PathChooser chooser(kCuda90, CopyPath::kKernel);
  const CopyShape large = shape(kToDevice, 100, 1024 * kKiB);
  for (std::uint64_t i = 0; i < 2 * PathChooser::kExploreEvery; ++i) {
    ASSERT_EQ(chooser.choose(large, kAll), CopyPath::kKernel) << "not even to explore";
  }
  EXPECT_EQ(chooser.choose(large, kCalls), CopyPath::kBatch);
}

TEST(PathChooser, MeasuredTimesCorrectTheDefaults) {
  PathChooser chooser(kCuda90, std::nullopt);
  const CopyShape small = shape(kToDevice, 500, 8 * kKiB);
  ASSERT_EQ(chooser.choose(small, kAll), CopyPath::kStaged);
  chooser.learn(small, CopyPath::kStaged, at_rate(small, 20e9));
  chooser.learn(small, CopyPath::kKernel, at_rate(small, 30e9));
  EXPECT_EQ(chooser.choose(small, kAll), CopyPath::kKernel);
  EXPECT_EQ(chooser.choose(shape(kToDevice, 300, 9 * kKiB), kAll), CopyPath::kKernel)
      << "of the same class";
  // Another size, count or direction is another matter.
  EXPECT_EQ(chooser.choose(shape(kToDevice, 500, 16 * kKiB), kAll), CopyPath::kStaged);
  EXPECT_EQ(chooser.choose(shape(kToDevice, 2000, 4 * kKiB), kAll), CopyPath::kStaged);
  // What was learned is forgotten when it is no longer so.
  for (int i = 0; i < 100; ++i) chooser.learn(small, CopyPath::kKernel, at_rate(small, 10e9));
  EXPECT_EQ(chooser.choose(small, kAll), CopyPath::kStaged);
}

// A link that is slower than the defaults think makes no untried path look good.
TEST(PathChooser, ASlowLinkIsNoReasonToTryEverything) {
  PathChooser chooser(kCuda90, std::nullopt);
  const CopyShape small = shape(kToDevice, 500, 8 * kKiB);
  for (std::uint64_t i = 1; i < PathChooser::kExploreEvery; ++i) {
    ASSERT_EQ(chooser.choose(small, kAll), CopyPath::kStaged) << i;
    chooser.learn(small, CopyPath::kStaged, at_rate(small, 1e9));
  }
}

TEST(PathChooser, OneStrangeTimeDoesNotTurnTheChoice) {
  PathChooser chooser(kCuda90, std::nullopt);
  const CopyShape small = shape(kToDevice, 500, 8 * kKiB);
  chooser.learn(small, CopyPath::kStaged, at_rate(small, 50e9));
  chooser.learn(small, CopyPath::kKernel, at_rate(small, 40e9));
  chooser.learn(small, CopyPath::kStaged, at_rate(small, 1e9));
  EXPECT_EQ(chooser.choose(small, kAll), CopyPath::kStaged);
  chooser.learn(small, CopyPath::kStaged, std::chrono::nanoseconds(0));
  EXPECT_EQ(chooser.choose(small, kAll), CopyPath::kStaged) << "0 is not a measurement";
}

TEST(PathChooser, ExploresRarelyAndNothingHopeless) {
  PathChooser chooser(kCuda90, std::nullopt);
  const CopyShape medium = shape(kToDevice, 500, 64 * kKiB);
  std::vector<CopyPath> explored;
  std::uint64_t num_best = 0;
  for (std::uint64_t i = 0; i < 8 * PathChooser::kExploreEvery; ++i) {
    const CopyPath path = chooser.choose(medium, kAll);
    if (path == CopyPath::kBatch) {
      ++num_best;
    } else {
      explored.push_back(path);
    }
    const double rate = path == CopyPath::kBatch ? 50e9 : path == CopyPath::kKernel ? 20e9 : 45e9;
    chooser.learn(medium, path, at_rate(medium, rate));
  }
  // One call per run (11 GB/s) never; the kernel once, for its default was not hopeless.
  EXPECT_EQ(explored.size(), 8U);
  EXPECT_EQ(num_best, 8 * (PathChooser::kExploreEvery - 1));
  EXPECT_EQ(std::count(explored.begin(), explored.end(), CopyPath::kPerRun), 0);
  EXPECT_EQ(std::count(explored.begin(), explored.end(), CopyPath::kKernel), 1);
}

TEST(PathChooser, ExplorationFindsAPathThatTheDefaultsUnderrate) {
  PathChooser chooser(kCuda90, std::nullopt);
  const CopyShape medium = shape(kToDevice, 500, 64 * kKiB);
  for (std::uint64_t i = 0; i < 4 * PathChooser::kExploreEvery; ++i) {
    const CopyPath path = chooser.choose(medium, kAll);
    chooser.learn(medium, path, at_rate(medium, path == CopyPath::kStaged ? 54e9 : 40e9));
  }
  EXPECT_EQ(chooser.choose(medium, kAll), CopyPath::kStaged);
}

TEST(PathChooser, TheHostBackEndLearnsNothing) {
  PathChooser chooser(kHost, std::nullopt);
  const CopyShape pieces = shape(kToDevice, 10, 64);
  for (std::uint64_t i = 0; i < 2 * PathChooser::kExploreEvery; ++i) {
    ASSERT_EQ(chooser.choose(pieces, kAll), CopyPath::kBatch);
    chooser.learn(pieces, CopyPath::kBatch, std::chrono::seconds(1));
  }
  const std::string text = chooser.text(kAll, kAll);
  EXPECT_EQ(text.find("measured"), std::string::npos) << text;
}

TEST(PathChooser, IsPrinted) {
  PathChooser chooser(kCuda90, std::nullopt);
  EXPECT_EQ(chooser.text(kCalls, kAll),
            "copy paths of cuda from sm_90\n"
            "  device to host, many runs: batch\n"
            "  host to device, many runs: staged, batch from 64 KiB");
  const CopyShape small = shape(kToDevice, 500, 8 * kKiB);
  chooser.learn(small, CopyPath::kStaged, at_rate(small, 51.2e9));
  EXPECT_NE(chooser.text(kCalls, kAll)
                .find("\n  measured host to device, 256+ runs of 8 KiB: staged 51.2 GB/s (1)"),
            std::string::npos)
      << chooser.text(kCalls, kAll);
  EXPECT_NE(PathChooser(kHip, CopyPath::kKernel).text(kCalls, kAll).find("forced to kernel"),
            std::string::npos);
}

// rocm-systems#11662
TEST(PathChooser, BatchCallOfHipIsTakenOnlyIfForced) {
  CopyPaths paths{CopyPath::kPerRun};
  paths.add(CopyPath::kBatch);
  const CopyShape shape{gpu::CopyDirection::kHostToDevice, 64, 64 << 10};
  PathChooser chooser(kHip, std::nullopt);
  chooser.learn(shape, CopyPath::kBatch, at_rate(shape, 1e12));
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(chooser.choose(shape, paths), CopyPath::kPerRun);
    ASSERT_EQ(PathChooser(kHip, CopyPath::kBatch).choose(shape, paths), CopyPath::kBatch);
  }
}

}  // namespace
}  // namespace kvferry::transfer
