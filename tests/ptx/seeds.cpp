// SPDX-License-Identifier: Apache-2.0
#include "seeds.hpp"

#include "asked.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>

namespace kvferry::ptx {
namespace {

using Clock = std::chrono::steady_clock;

void run_one(std::uint64_t seed, const std::function<void(std::uint64_t)>& run) {
  const auto* const info = ::testing::UnitTest::GetInstance()->current_test_info();
  SCOPED_TRACE("replay with KVFERRY_SEED=" + std::to_string(seed) +
               " ptx_test --gtest_filter=" + info->test_suite_name() + "." + info->name());
  run(seed);
}

}  // namespace

void for_each_seed(std::uint64_t usual, const std::function<void(std::uint64_t seed)>& run) {
  if (const auto seed = asked("KVFERRY_SEED")) return run_one(*seed, run);
  const std::chrono::seconds soak(asked("KVFERRY_SOAK_SECONDS", 0));
  const std::uint64_t count = asked("KVFERRY_NUM_SEEDS", usual);
  const std::uint64_t first = soak.count() == 0 ? 0 : std::random_device()();
  const Clock::time_point start = Clock::now();
  for (std::uint64_t done = 0; (soak.count() == 0 ? done < count : Clock::now() - start < soak) &&
                               !::testing::Test::HasFailure();
       ++done) {
    run_one(first + done, run);
  }
}

}  // namespace kvferry::ptx
