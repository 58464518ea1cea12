// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/divisor.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace kvferry {
namespace {

constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();

void expect_divides(std::uint32_t number, std::uint32_t by) {
  const Divisor divisor(by);
  ASSERT_EQ(divisor.quotient(number), number / by) << number << " by " << by;
  ASSERT_EQ(divisor.remainder(number), number % by) << number << " by " << by;
}

TEST(Divisor, DividesAsDivisionDoesAtEveryBorder) {
  static_assert(Divisor(7).quotient(49) == 7);
  for (const std::uint32_t by :
       {1U, 2U, 3U, 7U, 64U, 4095U, 4096U, 4097U, 1U << 31U, kMost - 1, kMost}) {
    for (const std::uint32_t number : {0U, 1U, by - 1, by, by + 1, kMost / 2, kMost - 1, kMost}) {
      expect_divides(number, by);
    }
    // On both sides of the largest multiple.
    const std::uint32_t multiple = kMost / by * by;
    expect_divides(multiple, by);
    expect_divides(multiple - 1, by);
  }
}

TEST(Divisor, DividesAsDivisionDoesAtRandom) {
  std::mt19937 random(5);
  for (int i = 0; i < 200'000; ++i) {
    expect_divides(random() >> (random() % 32), 1 + (random() >> (random() % 32)) % kMost);
  }
}

}  // namespace
}  // namespace kvferry
