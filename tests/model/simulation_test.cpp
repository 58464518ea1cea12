// SPDX-License-Identifier: Apache-2.0
// Whole lives of a scheduler side in virtual time, each from one seed. Each is recorded into a
// file, which `kvferry replay` takes if the life fails, and has to come again in a replay.
#include "kvferry/base/error.hpp"
#include "kvferry/connector/replay/replay.hpp"
#include "kvferry/recorder/recording.hpp"

#include "random_life.hpp"
#include "seeded_runs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unistd.h>

namespace kvferry::connector {
namespace {

/// How often each kind of event happened.
using Seen = std::map<std::string, std::uint64_t>;

class SimulatedLife final : public RandomLife {
 public:
  explicit SimulatedLife(const std::string& path) {
    ::unlink(path.c_str());
    recording_path_ = path;
  }

  void play(std::uint64_t seed, int steps, const std::function<bool()>& failed) {
    if (seed % 3 == 2) add_window(9);
    if (seed % 2 == 1) retention_.rule = Retention::Rule::kEngine;
    begin_life(seed);
    const auto go_on = [&](int count) {
      for (int i = 0; i < count && !failed(); ++i) {
        live(1);
        engine_->check_invariants(i % 16 == 0 ? CheckDepth::kAll : CheckDepth::kCounts);
      }
    };
    go_on(steps);
    if (seed % 4 == 3) {
      kill_a_rank();
      // Not at once: everything that the rank has does not come back.
      EXPECT_THROW(
          {
            while (!failed() && steps-- > 0) {
              now_ += kRankTimeout / 16;
              go_on(1);
            }
          },
          TimeoutError);
    } else if (!failed()) {
      drain();
    }
    engine_->check_invariants(CheckDepth::kAll);
  }

  void expect_replayed(std::uint64_t seed, Seen& seen) const {
    const recorder::Recording recording = recorder::Recording::from_file(recording_path_);
    ASSERT_TRUE(recording.is_whole());
    const ReplayResult result = replay(recording, {.check_tier_every = 64});
    EXPECT_FALSE(result.difference)
        << result.difference->recorded << "\nreplayed: " << result.difference->replayed;
    EXPECT_EQ(result.books, engine_->books());
    EXPECT_EQ(result.last_error.has_value(), seed % 4 == 3);
    for (const recorder::Event& event : recording) {
      std::string name = recorder::name_of(event.kind());
      if (event.kind() == recorder::EventKind::kLoadEnded ||
          event.kind() == recorder::EventKind::kStoreEnded) {
        name += " " + std::to_string(event.head.flags());
      }
      ++seen[name];
    }
  }

 private:
  void TestBody() override {}
};

TEST(Simulation, WhateverHappensEndsWithTheBooksInOrderAndComesAgain) {
  Seen seen;
  std::uint64_t num_steps = 0;
  SeededRuns runs;
  runs.num_seeds = 12;
  runs.steps_per_seed = 300;
  runs.run = [&](std::uint64_t seed, int steps, const std::function<bool()>& failed) {
    const std::string path = ::testing::TempDir() + "simulation-" + std::to_string(::getpid()) +
                             "-" + std::to_string(seed) + ".kvferry-recording";
    {
      SimulatedLife life(path);
      life.play(seed, steps, failed);
      num_steps += static_cast<std::uint64_t>(steps);
      if (!failed()) life.expect_replayed(seed, seen);
    }
    if (!failed()) {
      ::unlink(path.c_str());
      return;
    }
    ADD_FAILURE() << "`kvferry replay " << path << "` makes the same calls again";
  };
  runs.num_steps_done = [&] { return num_steps; };
  const auto expected = {"aborted",       "cancels",       "load ended 0", "load ended 1",
                         "load ended 2",  "load ended 3",  "notice",       "stale",
                         "store ended 0", "store ended 1", "threw",        "told",
                         "skipped",       "left",          "preempted",    "reset"};
  runs.has_seen_everything = [&] {
    return std::all_of(expected.begin(), expected.end(),
                       [&](const char* name) { return seen[name] > 0; });
  };
  const RunKind kind = run_seeds(runs);
  if (kind != RunKind::kWhole || HasFailure()) return;
  for (const char* name : expected) EXPECT_GT(seen[name], 0U) << name;
}

}  // namespace
}  // namespace kvferry::connector
