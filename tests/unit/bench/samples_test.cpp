// SPDX-License-Identifier: Apache-2.0
#include "measure/samples.hpp"

#include <gtest/gtest.h>

namespace kvferry::bench {
namespace {

TEST(SamplesTest, PercentilesAreSamplesThatWereTaken) {
  Samples samples;
  for (int i = 200; i > 0; --i) samples.add(std::chrono::microseconds(i));
  EXPECT_DOUBLE_EQ(samples.mean_us(), 100.5);
  EXPECT_DOUBLE_EQ(samples.percentile_us(0.5), 100);
  EXPECT_DOUBLE_EQ(samples.percentile_us(0.99), 198);
  EXPECT_DOUBLE_EQ(samples.percentile_us(0.999), 200);
  EXPECT_DOUBLE_EQ(samples.percentile_us(1), 200);
}

}  // namespace
}  // namespace kvferry::bench
