// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvferry::cpu_tier {

/// Readable blocks are in one of two segments, each in order of recency: on probation until they
/// are used or offered again, protected from then on.
enum class Segment : std::uint8_t { kProbation, kProtected };
inline constexpr std::size_t kNumSegments = 2;

/// Where the next victim is taken from: the coldest of one of the segments.
struct VictimRule {
  enum class From : std::uint8_t {
    kOldest,         ///< The older of the two: LRU over all.
    kProbationAbove  ///< Probation while that holds more than `probation_share` of all slots; else
                     ///< the older of the two. So no block leaves before one that stands after it.
  };
  From from = From::kOldest;
  float probation_share = 0;
  /// Most promised blocks that stay when their turn has come (promise_ledger.hpp).
  std::uint32_t max_stays = 0;
};

/// Which offered blocks a full tier stores.
enum class AdmissionRule : std::uint8_t {
  kAll,
  kOfferedBefore,    ///< And not forgotten since (offer_history.hpp).
  kHotterThanVictim  ///< Offered before, and more often than the victim was used (TinyLFU:
                     ///< Einziger, Friedman, Manes 2017). A victim that stays is counted down.
};

/// One way of deciding both (eviction_table.hpp has those that there are).
struct PolicyRule {
  const char* name;
  AdmissionRule admission;
  VictimRule victims;

  [[nodiscard]] constexpr bool is_plain_lru() const {
    return admission == AdmissionRule::kAll && victims.from == VictimRule::From::kOldest;
  }
};

/// How often a block was used or offered is counted up to here: three bits.
inline constexpr std::uint32_t kMaxHeat = 7;

}  // namespace kvferry::cpu_tier
