// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

/// Many runs of one random test, each from a seed.
namespace kvferry::connector {

struct SeededRuns {
  std::uint64_t num_seeds = 0;  ///< Where nobody asks for a soak.
  int steps_per_seed = 0;
  /// Runs so many steps; ends early if `failed()`. Its failures are GoogleTest's.
  std::function<void(std::uint64_t seed, int steps, const std::function<bool()>& failed)> run;
  /// For the line of progress.
  std::function<std::uint64_t()> num_steps_done;
  /// Whether all that must be seen has happened. Until then more seeds follow, up to eight times as
  /// many: what is rare depends on timing, too.
  std::function<bool()> has_seen_everything;
};

enum class RunKind : std::uint8_t {
  kWhole,  ///< Has to have seen everything.
  kBrief,  ///< Fewer seeds than usual.
  kReplay  ///< One seed.
};

/// Runs until one seed fails, which is then run again with fewer steps. KVFERRY_SEED replays one
/// run; KVFERRY_SOAK_SECONDS runs fresh seeds for so long and prints a line every half minute;
/// KVFERRY_NUM_SEEDS runs so many, from 0 on.
RunKind run_seeds(const SeededRuns& runs);

}  // namespace kvferry::connector
