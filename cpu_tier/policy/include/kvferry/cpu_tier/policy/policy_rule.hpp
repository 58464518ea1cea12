// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvferry::cpu_tier {

/// A readable block is in one of two segments, each in order of recency. It is on probation until
/// it is used or offered again, and protected afterwards.
enum class Segment : std::uint8_t { kProbation, kProtected };
inline constexpr std::size_t kNumSegments = 2;

/// Which segment's coldest block is the next victim.
struct VictimRule {
  enum class From : std::uint8_t {
    kOldest,         ///< The older of the two coldest blocks: LRU over all blocks.
    kProbationAbove  ///< The one on probation, while probation holds more than `probation_share` of
                     ///< all slots; otherwise the older one. No block leaves before a block after
                     ///< it.
  };
  From from = From::kOldest;
  float probation_share = 0;
  /// Most promised blocks that stay when they would be evicted (promise_ledger.hpp).
  std::uint32_t max_stays = 0;
};

/// Which offered blocks a full tier stores.
enum class AdmissionRule : std::uint8_t {
  kAll,
  kOfferedBefore,    ///< Blocks that were offered before, as far as remembered (offer_history.hpp).
  kHotterThanVictim  ///< Those of them that were offered more often than the victim was used
                     ///< (TinyLFU: Einziger, Friedman, Manes 2017). If the victim stays, its count
                     ///< is lowered by one.
};

/// A rule for both decisions. eviction_table.hpp has the rules that exist.
struct PolicyRule {
  const char* name;
  AdmissionRule admission;
  VictimRule victims;

  [[nodiscard]] constexpr bool is_plain_lru() const {
    return admission == AdmissionRule::kAll && victims.from == VictimRule::From::kOldest;
  }
};

/// Uses and offers of a block are counted up to this number: three bits.
inline constexpr std::uint32_t kMaxHeat = 7;

}  // namespace kvferry::cpu_tier
