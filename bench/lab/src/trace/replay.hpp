// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/tier_options.hpp"

#include "trace/client_hints.hpp"
#include "trace/trace.hpp"

#include <cstdint>

namespace kvferry::bench::trace {

/// The results of a tier on a trace. An access is one block of one request.
struct ReplayResult {
  std::uint64_t num_accesses = 0;
  /// Accesses to blocks that the tier held when their request began.
  std::uint64_t num_hits = 0;
  /// The other accesses.
  std::uint64_t num_misses = 0;
  /// Hits in an unbroken prefix, which an engine can load.
  std::uint64_t num_loads = 0;
  /// Of those.
  std::uint64_t num_loaded_tokens = 0;
  std::uint64_t num_stores = 0;
  std::uint64_t num_evictions = 0;
  /// Blocks that the tier holds at the end, counted there.
  std::uint64_t num_resident = 0;
  std::uint64_t num_rule_switches = 0;
  std::uint64_t num_won = 0;   ///< Loads of blocks that stayed because of hints.
  std::uint64_t num_lost = 0;  ///< Blocks that had left instead, and were then requested.
  double seconds = 0;          ///< Processor time of this thread.

  [[nodiscard]] double hit_percent() const { return percent_of_accesses(num_hits); }
  [[nodiscard]] double load_percent() const { return percent_of_accesses(num_loads); }

 private:
  [[nodiscard]] double percent_of_accesses(std::uint64_t count) const {
    return num_accesses == 0
               ? 0
               : 100.0 * static_cast<double>(count) / static_cast<double>(num_accesses);
  }
};

/// Replays on the real tier (Tier), used like a connector uses it. For each request in turn, its
/// prefix is leased and released, then all of its blocks are offered, and the admitted ones are
/// reserved and committed. `num_queued` requests are known before their turn (Tier::await()). When
/// a request ends, its client gives hints about it (TierPromises).
[[nodiscard]] ReplayResult replay_tier(const Trace& trace, std::uint32_t capacity,
                                       const cpu_tier::TierOptions& options,
                                       std::uint32_t num_queued = 0,
                                       HintStyle hints = HintStyle::kNone);

/// Policies that the tier does not have, for comparison. All count a hit anywhere in its request,
/// process blocks from the last to the first, once per request, and forget nothing.
enum class Reference : std::uint8_t {
  kSecondSight,  ///< LRU; a block is stored when it is missed for the second time ever.
  kS3Fifo,       ///< Yang et al., SOSP 2023: a tenth for newcomers, ghosts of 0.9 of the capacity.
  kSieve,        ///< Zhang et al., NSDI 2024.
  /// Clairvoyant (Belady 1966): evicts the block that is needed last; stores every missed block.
  kOptimum
};
[[nodiscard]] ReplayResult replay_reference(const Trace& trace, std::uint32_t capacity,
                                            Reference policy);

/// A tier that never evicts.
[[nodiscard]] ReplayResult replay_endless(const Trace& trace);

}  // namespace kvferry::bench::trace
