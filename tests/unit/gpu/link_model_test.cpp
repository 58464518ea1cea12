// SPDX-License-Identifier: Apache-2.0
#include "host/link_model.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <vector>

namespace kvferry::gpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

std::vector<std::uint64_t> failing(const HostLinkOptions& options) {
  const LinkModel model(options);
  std::vector<std::uint64_t> result;
  for (std::uint64_t copy = 1; copy <= 1000; ++copy) {
    if (model.fails(copy)) result.push_back(copy);
  }
  return result;
}

TEST(LinkModel, IsNotSimulatedByDefaultNorByFailuresAlone) {
  EXPECT_FALSE(LinkModel({}).simulated());
  EXPECT_FALSE(LinkModel({.fail_nth = 3, .fail_probability = 0.5, .seed = 7}).simulated());
  EXPECT_TRUE(LinkModel({.h2d_bytes_per_second = 1}).simulated());
  EXPECT_TRUE(LinkModel({.d2h_bytes_per_second = 1}).simulated());
  EXPECT_TRUE(LinkModel({.latency = nanoseconds(1)}).simulated());
  EXPECT_TRUE(LinkModel({.jitter = nanoseconds(1)}).simulated());
  EXPECT_TRUE(LinkModel({.stall = nanoseconds(1)}).simulated());
  EXPECT_TRUE(LinkModel({.order = LinkOrder::kShuffled}).simulated());
}

TEST(LinkModel, OccupancyIsLatencyPlusBytesOverTheRateOfTheDirection) {
  const LinkModel model(
      {.h2d_bytes_per_second = 1e6, .d2h_bytes_per_second = 2e6, .latency = milliseconds(5)});
  EXPECT_EQ(model.occupancy(1, CopyDirection::kHostToDevice, 10'000), milliseconds(15));
  EXPECT_EQ(model.occupancy(1, CopyDirection::kDeviceToHost, 10'000), milliseconds(10));
}

TEST(LinkModel, UnlimitedDirectionTakesOnlyTheLatency) {
  const LinkModel model({.d2h_bytes_per_second = 1e6, .latency = milliseconds(5)});
  EXPECT_EQ(model.occupancy(1, CopyDirection::kHostToDevice, 1U << 30U), milliseconds(5));
}

TEST(LinkModel, JitterVariesByCopyWithinItsBoundAndRepeatsWithTheSeed) {
  const HostLinkOptions options{.jitter = milliseconds(1), .seed = 7};
  std::set<nanoseconds> seen;
  for (std::uint64_t copy = 1; copy <= 100; ++copy) {
    const auto time = LinkModel(options).occupancy(copy, CopyDirection::kHostToDevice, 0);
    EXPECT_GE(time, nanoseconds::zero());
    EXPECT_LE(time, milliseconds(1));
    EXPECT_EQ(time, LinkModel(options).occupancy(copy, CopyDirection::kHostToDevice, 0));
    seen.insert(time);
  }
  EXPECT_GT(seen.size(), 90U);
}

TEST(LinkModel, FailNthFailsThatCopyOnly) {
  EXPECT_EQ(failing({.fail_nth = 17}), (std::vector<std::uint64_t>{17}));
  EXPECT_TRUE(failing({}).empty());
}

TEST(LinkModel, FailProbabilityIsMetAndRepeatsWithTheSeed) {
  EXPECT_EQ(failing({.fail_probability = 1}).size(), 1000U);
  const auto fifth = failing({.fail_probability = 0.2, .seed = 7});
  EXPECT_GT(fifth.size(), 120U);
  EXPECT_LT(fifth.size(), 280U);
  EXPECT_EQ(failing({.fail_probability = 0.2, .seed = 7}), fifth);
  EXPECT_NE(failing({.fail_probability = 0.2, .seed = 8}), fifth);
}

TEST(LinkModel, FifoRanksBySubmissionAndShuffledDoesNot) {
  const LinkModel fifo({.latency = nanoseconds(1)});
  const LinkModel shuffled({.order = LinkOrder::kShuffled, .seed = 7});
  std::uint64_t num_swapped = 0;
  for (std::uint64_t copy = 1; copy < 100; ++copy) {
    EXPECT_LT(fifo.rank(copy), fifo.rank(copy + 1));
    EXPECT_EQ(fifo.hold_back(copy), nanoseconds::zero());
    EXPECT_LE(shuffled.hold_back(copy), std::chrono::microseconds(100));
    if (shuffled.rank(copy) > shuffled.rank(copy + 1)) ++num_swapped;
  }
  EXPECT_GT(num_swapped, 20U);
  EXPECT_LT(num_swapped, 80U);
}

TEST(LinkModel, RefusesFiguresOutOfRange) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_THROW(LinkModel({.h2d_bytes_per_second = -1}), ConfigError);
  EXPECT_THROW(LinkModel({.d2h_bytes_per_second = kNan}), ConfigError);
  EXPECT_THROW(LinkModel({.d2h_bytes_per_second = kInfinity}), ConfigError);
  EXPECT_THROW(LinkModel({.latency = nanoseconds(-1)}), ConfigError);
  EXPECT_THROW(LinkModel({.jitter = nanoseconds(-1)}), ConfigError);
  EXPECT_THROW(LinkModel({.stall = nanoseconds(-1)}), ConfigError);
  EXPECT_THROW(LinkModel({.fail_probability = 1.5}), ConfigError);
  EXPECT_THROW(LinkModel({.fail_probability = kNan}), ConfigError);
  EXPECT_THROW(std::ignore = make_host_device({.fail_probability = -0.5}), ConfigError);
}

}  // namespace
}  // namespace kvferry::gpu
