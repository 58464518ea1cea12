// SPDX-License-Identifier: Apache-2.0
#include "toy_engine.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <string>

/// One SchedulerEngine and two WorkerEngines on host devices, driven by a small engine at random
/// (toy_engine.hpp). KVFERRY_SEED replays one run, KVFERRY_SOAK_SECONDS runs fresh seeds for so
/// long.
namespace kvferry::connector {
namespace {

std::optional<std::uint64_t> number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::nullopt : std::optional(std::strtoull(text, nullptr, 10));
}

constexpr std::uint64_t kSeeds = 60;
constexpr int kStepsPerSeed = 400;

ToyTotals run(std::uint64_t seed) {
  SCOPED_TRACE("replay with KVFERRY_SEED=" + std::to_string(seed));
  ToyEngine engine(seed);
  for (int step = 0; step < kStepsPerSeed && !::testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    engine.step();
  }
  if (!::testing::Test::HasFailure()) engine.drain();
  return engine.totals();
}

TEST(EnginePair, NothingWrongIsLoadedAndNothingIsLostWhateverHappens) {
  if (const auto seed = number_from_environment("KVFERRY_SEED")) {
    static_cast<void>(run(*seed));
    return;
  }
  const std::chrono::seconds soak(number_from_environment("KVFERRY_SOAK_SECONDS").value_or(0));
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t first = soak.count() == 0 ? 0 : std::random_device()();
  ToyTotals totals;
  for (std::uint64_t done = 0;
       (soak.count() == 0 ? done < kSeeds : std::chrono::steady_clock::now() - start < soak) &&
       !HasFailure();
       ++done) {
    totals.add(run(first + done));
  }
  std::cout << totals.steps << " steps, blocks: " << totals.stored << " stored ("
            << totals.early_blocks << " out of the backlog), " << totals.loaded_blocks
            << " loaded, " << totals.evicted << " evicted; skipped: " << totals.skipped_ring
            << " ring, " << totals.skipped_exhausted << " exhausted, " << totals.skipped_reallocated
            << " reallocated; loads: " << totals.failed_loads << " failed, " << totals.aborted_loads
            << " aborted, " << totals.orphaned_loads << " whose id was reused; "
            << totals.failed_stores << " failed store blocks, " << totals.preemptions
            << " preemptions, " << totals.resets << " resets\n";
  // A run in which something never happens proves nothing about it.
  for (const std::uint64_t count :
       {totals.stored, totals.early_blocks, totals.loaded_blocks, totals.evicted,
        totals.skipped_ring, totals.skipped_exhausted, totals.skipped_reallocated,
        totals.failed_loads, totals.aborted_loads, totals.failed_stores, totals.preemptions,
        totals.resets}) {
    EXPECT_GT(count, 0U);
  }
}

}  // namespace
}  // namespace kvferry::connector
