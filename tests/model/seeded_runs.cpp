// SPDX-License-Identifier: Apache-2.0
#include "seeded_runs.hpp"

#include "asked.hpp"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <iostream>
#include <random>
#include <string>
#include <unistd.h>

namespace kvferry::connector {
namespace {

using Clock = std::chrono::steady_clock;

std::array<char, 80> death_note;
std::size_t death_note_size = 0;

/// A broken invariant aborts the process, and would take the seed along.
void say_seed_on_abort(std::uint64_t seed) {
  death_note_size = static_cast<std::size_t>(std::snprintf(
      death_note.data(), death_note.size(), "aborted: replay with KVFERRY_SEED=%llu\n",
      static_cast<unsigned long long>(seed)));
  std::signal(SIGABRT, [](int) {
    if (write(STDERR_FILENO, death_note.data(), death_note_size) < 0) return;
  });
}

void run_caught(const SeededRuns& runs, std::uint64_t seed, int steps,
                const std::function<bool()>& failed) {
  try {
    runs.run(seed, steps, failed);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

/// Runs without failing the test.
bool fails(const SeededRuns& runs, std::uint64_t seed, int steps) {
  ::testing::TestPartResultArray results;
  ::testing::ScopedFakeTestPartResultReporter reporter(
      ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
  run_caught(runs, seed, steps, [&results] { return results.size() > 0; });
  return results.size() > 0;
}

void shrink(const SeededRuns& runs, std::uint64_t seed) {
  constexpr int kTries = 3;  // Copies take their own time: no two runs are alike.
  const auto fails_soon = [&](int steps) {
    for (int i = 0; i < kTries; ++i) {
      if (fails(runs, seed, steps)) return true;
    }
    return false;
  };
  int least = runs.steps_per_seed;
  if (!fails_soon(least)) {
    std::cout << "seed " << seed << " did not fail again in " << kTries
              << " runs: it depends on timing\n";
    return;
  }
  for (int passes = 0; least - passes > 1;) {
    const int middle = passes + (least - passes) / 2;
    (fails_soon(middle) ? least : passes) = middle;
  }
  std::cout << "seed " << seed << " fails within " << least << " of " << runs.steps_per_seed
            << " steps (fewer did not fail in " << kTries << " runs; timing may decide)"
            << std::endl;
}

void run_one(const SeededRuns& runs, std::uint64_t seed) {
  SCOPED_TRACE("replay with KVFERRY_SEED=" + std::to_string(seed));
  say_seed_on_abort(seed);
  run_caught(runs, seed, runs.steps_per_seed, [] { return ::testing::Test::HasFailure(); });
  if (::testing::Test::HasFailure()) shrink(runs, seed);
}

}  // namespace

RunKind run_seeds(const SeededRuns& runs) {
  if (const auto seed = asked("KVFERRY_SEED")) {
    run_one(runs, *seed);
    return RunKind::kReplay;
  }
  const std::chrono::seconds soak(asked("KVFERRY_SOAK_SECONDS", 0));
  const auto brief = asked("KVFERRY_NUM_SEEDS");
  const Clock::time_point start = Clock::now();
  const std::uint64_t first = soak.count() == 0 ? 0 : std::random_device()();
  std::uint64_t done = 0;
  const auto say = [&](const char* what) {
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start);
    std::cout << what << age.count() << " s: " << runs.num_steps_done() << " steps, " << done
              << " seeds from " << first << " to " << first + done - 1 << std::endl;
  };
  Clock::time_point next_line = start + std::chrono::seconds(30);
  const auto goes_on = [&] {
    if (soak.count() != 0) return Clock::now() - start < soak;
    if (brief) return done < *brief;
    return done < runs.num_seeds || (done < 8 * runs.num_seeds && !runs.has_seen_everything());
  };
  while (!::testing::Test::HasFailure() && goes_on()) {
    run_one(runs, first + done++);
    if (soak.count() == 0 || Clock::now() < next_line) continue;
    next_line += std::chrono::seconds(30);
    say("soak, ");
  }
  say("ran ");
  std::signal(SIGABRT, SIG_DFL);
  return soak.count() == 0 && brief ? RunKind::kBrief : RunKind::kWhole;
}

}  // namespace kvferry::connector
