// SPDX-License-Identifier: Apache-2.0
#include "expect_replay.hpp"
#include "seeded_runs.hpp"
#include "toy_engine.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <string>

/// One SchedulerEngine and two WorkerEngines on the devices that KVFERRY_TEST_BACKEND names, driven
/// by a small engine at random (toy_engine.hpp). What the SchedulerEngine did is recorded, and has
/// to come again in a replay.
namespace kvferry::connector {
namespace {

ToyTotals run(std::uint64_t seed, int steps, const std::function<bool()>& failed) {
  ToyEngine engine(seed);
  const auto run_steps = [&](int count) {
    for (int step = 0; step < count && !failed(); ++step) {
      SCOPED_TRACE("step " + std::to_string(engine.totals().steps));
      engine.step();
    }
  };
  if (engine.loses_a_rank()) {
    run_steps(steps / 2);
    if (!failed()) engine.lose_a_rank();
    run_steps(steps / 4);
  } else {
    run_steps(steps);
  }
  if (!failed()) engine.drain();
  if (!failed()) engine.expect_ranks_recorded();
  if (!failed()) expect_replay(engine.recorder());
  return engine.totals();
}

TEST(EnginePair, NothingWrongIsLoadedAndNothingIsLostWhateverHappens) {
  ToyTotals totals;
  SeededRuns runs;
  runs.num_seeds = 12;
  runs.steps_per_seed = 400;
  runs.run = [&totals](std::uint64_t seed, int steps, const std::function<bool()>& failed) {
    totals.add(run(seed, steps, failed));
  };
  runs.num_steps_done = [&totals] { return totals.steps; };
  runs.has_seen_everything = [&totals] { return totals.all_happened(); };
  const RunKind kind = run_seeds(runs);
  if (kind == RunKind::kReplay || HasFailure()) return;
  // A run in which something never happens proves nothing about it.
  ToyTotals::for_each([&](const char* name, auto member) {
    std::cout << "  " << totals.*member << ' ' << name << '\n';
    if (kind == RunKind::kWhole && ToyTotals::is_certain(member)) {
      EXPECT_GT(totals.*member, 0U) << name;
    }
  });
  EXPECT_GT(totals.stored, 0U);
  EXPECT_GT(totals.loaded_blocks, 0U);
}

}  // namespace
}  // namespace kvferry::connector
