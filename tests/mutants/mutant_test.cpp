// SPDX-License-Identifier: Apache-2.0
// Faults in the code of the life cycle, switched on one by one. If one ends in an error, the
// recording alone brings the same error again, at the same event, at the first try. If it decides
// otherwise than the code without it, the recording brings the same decisions.
#include "mutant.hpp"

#include "kvferry/connector/replay/replay.hpp"
#include "kvferry/recorder/recording.hpp"

#include "asked.hpp"
#include "other_process.hpp"
#include "random_life.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

namespace kvferry::connector {
namespace {

using recorder::Recording;

/// What became of a life with a fault.
enum class End : std::uint8_t {
  kUnnoticed,  ///< It decided the same as without the fault.
  kError,      ///< An error of the core ended it.
  kOtherwise,  ///< It decided otherwise.
  kElsewhere   ///< The test's own code, a sanitizer or the time limit ended it.
};

/// What became of a replay.
enum Replayed : int { kSame = 0, kDiffers = 1, kHasError = 2, kIsShort = 3, kRefused = 4 };

class MutantTest : public RandomLife {
 protected:
  static constexpr int kSteps = 100;

  void SetUp() override {}
  void TearDown() override { ::unlink(path_.c_str()); }

  /// Lives with the fault in a process of its own, which records into a file.
  End live_with(int mutant, std::uint64_t seed = 1) {
    ::unlink(path_.c_str());
    const int status = in_a_process([&] {
      restrict();
      forget_recording();  // The engine before has recorded nothing that counts.
      recording_path_ = path_;
      mutants::active = mutant;
      try {
        begin_life(seed);
        for (int i = 0; i < kSteps && !HasFailure(); ++i) {
          live(1);
          engine_->check_invariants(CheckDepth::kAll);
        }
        engine_.reset();
      } catch (const std::exception&) {
        return 1;
      }
      return HasFailure() ? 1 : 0;
    });
    if (has_error()) return End::kError;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return End::kElsewhere;
    // The code without the fault is the oracle.
    return replay_with(0) == kSame ? End::kUnnoticed : End::kOtherwise;
  }
  /// Replays the file with a fault, in a process of its own. Returns a Replayed, or the signal that
  /// stopped it, less than 0.
  [[nodiscard]] int replay_with(int mutant) const {
    const int status = in_a_process([&]() -> int {
      restrict();
      mutants::active = mutant;
      try {
        const Recording recording = Recording::from_file(path_);
        // As a user replays it, if an error ended it. Otherwise a fault may break an invariant that
        // nothing had found.
        const ReplayResult result =
            has_error() ? replay(recording) : replay(recording, {.check_tier_every = 0});
        if (result.difference) {
          std::cerr << "  recorded: " << result.difference->recorded
                    << "\n  replayed: " << result.difference->replayed << '\n';
          return kDiffers;
        }
        const auto num_events = std::distance(recording.begin(), recording.end());
        if (result.num_events != static_cast<std::uint64_t>(num_events)) return kIsShort;
        return result.last_error ? kHasError : kSame;
      } catch (const std::exception& error) {
        std::cerr << "  " << error.what() << '\n';
        return kRefused;
      }
    });
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  /// A fault can allocate or loop without an end. What stops it is not to be read.
  static void restrict() {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::alarm(20);
    if (std::getenv("KVFERRY_MUTANT_OUTPUT") == nullptr) {
      static_cast<void>(::freopen("/dev/null", "w", stderr));
    }
  }
  /// Whether the life ended in an error of the core, as its recording has it.
  [[nodiscard]] bool has_error() const {
    try {
      return recorder::ends_with_error(Recording::from_file(path_));
    } catch (const std::exception&) {
      return false;
    }
  }

  std::string path_ = ::testing::TempDir() + "mutant-" + std::to_string(::getpid());
};

/// Faults that end in an error, by their texts. If the code is changed so that
/// one has gone, take another one (KVFERRY_NUM_MUTANTS=100 prints some).
constexpr std::array kErrors{
    "without begun_.clear();",
    "without tier_.release(std::move(part.lease));",
    "without parts_->end_step();",
    "without by_id_.erase(request.id);",
    "without commit(store);",
    "without request->state = RequestState::kAbortedLoading;",
    "never (report.executed <= last_seq)",
    "without static_cast<void>(requests_.end_load(load.owner, transfer));",
};

/// The first fault with this text; 0: there is none.
int find(const std::string& text) {
  for (int i = 0; i < mutants::num_mutants; ++i) {
    const std::string where = mutants::where[i];  // NOLINT
    if (where.find(": " + text) != std::string::npos) return i + 1;
  }
  return 0;
}

TEST_F(MutantTest, WithoutAFaultNothingIsNoticed) { EXPECT_EQ(live_with(0), End::kUnnoticed); }

TEST_F(MutantTest, AnErrorComesAgainFromItsRecordingAlone) {
  std::string wrong;  // A failure now would be one of the next process too.
  for (const char* text : kErrors) {
    const int mutant = find(text);
    if (mutant == 0) {
      wrong += std::string("\n  there is none: ") + text;
    } else if (live_with(mutant) != End::kError) {
      wrong += std::string("\n  no error of the core: ") + text;
    } else if (const int replayed = replay_with(mutant); replayed != kHasError) {
      wrong += "\n  " + std::to_string(replayed) + " by a replay: " + text;
    }
  }
  EXPECT_EQ(wrong, "");
}

/// Random faults in random lives, until so many different ones have ended in an error:
/// KVFERRY_NUM_MUTANTS. Without it, until a few have done something. KVFERRY_SEED is the first
/// life's seed.
TEST_F(MutantTest, WhatAFaultDoesComesAgainFromItsRecordingAlone) {
  const char* only = std::getenv("KVFERRY_MUTANT");
  const std::uint64_t first_seed = asked("KVFERRY_SEED", 1);
  const std::size_t num_errors = asked("KVFERRY_NUM_MUTANTS", 0);
  std::vector<int> order(static_cast<std::size_t>(mutants::num_mutants));
  std::iota(order.begin(), order.end(), 1);
  if (only != nullptr) order = {std::atoi(only)};
  std::map<End, int> ends;
  std::set<int> errors;
  std::set<int> elsewhere;
  std::string wrong;
  const int num_effects = only != nullptr ? 1 : 6;
  const auto is_enough = [&] {
    return num_errors > 0 ? errors.size() >= num_errors
                          : ends[End::kError] + ends[End::kOtherwise] >= num_effects;
  };
  for (std::uint64_t seed = first_seed; seed < first_seed + 8; ++seed) {
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    for (const int mutant : order) {
      if (is_enough()) break;
      if (errors.contains(mutant) || elsewhere.contains(mutant)) continue;
      const End end = live_with(mutant, seed);
      ++ends[end];
      // Most of them loop without an end, and would in every round until the time limit.
      if (end == End::kElsewhere) elsewhere.insert(mutant);
      if (end != End::kError && end != End::kOtherwise) continue;
      const std::string where =
          std::to_string(mutant) + ", " + mutants::where[mutant - 1];  // NOLINT
      if (end == End::kError) {
        errors.insert(mutant);
        std::cout << "  " << where << std::flush;
      }
      const int expected = end == End::kError ? kHasError : kSame;
      const int replayed = replay_with(mutant);
      if (end == End::kError)
        std::cout << (replayed == expected ? ": again" : ": NOT") << std::endl;
      if (replayed == expected) continue;
      wrong += "\n  " + std::to_string(replayed) + " instead of " + std::to_string(expected) +
               ", seed " + std::to_string(seed) + ", KVFERRY_MUTANT=" + where;
    }
  }
  std::cout << "  faults that ended in an error: " << ends[End::kError]
            << ", that decided otherwise: " << ends[End::kOtherwise]
            << ", that were not noticed: " << ends[End::kUnnoticed]
            << ", that something else ended: " << ends[End::kElsewhere] << '\n';
  EXPECT_EQ(wrong, "") << "run it with KVFERRY_MUTANT_OUTPUT=1";
  EXPECT_GT(ends[End::kError] + ends[End::kOtherwise], 0);
  EXPECT_GE(errors.size(), num_errors);
}

}  // namespace
}  // namespace kvferry::connector
