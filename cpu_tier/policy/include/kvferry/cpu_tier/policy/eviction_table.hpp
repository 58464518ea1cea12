// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/policy_rule.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

/// The table of eviction policies. Users can choose every policy that has a row here, by its name.
namespace kvferry::cpu_tier {

class EvictionMemory;

/// The rules that race in an adaptive tier. The last one is plain LRU: the tier starts with it, and
/// the others are measured against it. For each rule there is some kind of traffic for which it is
/// clearly the best (docs/decisions/policies.md). No rule evicts a block before the blocks after it
/// in a prompt.
inline constexpr std::array kRacingRules{
    PolicyRule{"frequent", AdmissionRule::kHotterThanVictim, {}},
    PolicyRule{"second_offer", AdmissionRule::kOfferedBefore, {}},
    PolicyRule{"half", AdmissionRule::kAll, {VictimRule::From::kProbationAbove, 0.5F}},
    PolicyRule{"lru", AdmissionRule::kAll, {}},
};
/// The rules that race if only the admission adapts.
inline constexpr std::array kAdmissionRules{kRacingRules[1], kRacingRules[3]};

/// Which blocks leave when room is needed.
enum class Eviction : std::uint8_t {
  kAdaptive,  ///< By the rule that the race has chosen (policy_race.hpp).
  kLru,       ///< The least recently used block.
  kArc        ///< By the share for probation that ARC's ghosts learn (Megiddo, Modha 2003).
};

/// arc_ghosts.hpp
[[nodiscard]] std::unique_ptr<EvictionMemory> make_arc_ghosts(std::uint32_t max_slots);

struct EvictionRow {
  Eviction eviction;
  const char* name;
  /// The rules that race. The Admission excludes some of them.
  std::span<const PolicyRule> rules;
  /// Makes the memory that chooses the victims; null if the rules choose them.
  std::unique_ptr<EvictionMemory> (*make_memory)(std::uint32_t max_slots);
};
/// In the order of the enumerators.
inline constexpr std::array kEvictions{
    EvictionRow{Eviction::kAdaptive, "adaptive", kRacingRules, nullptr},
    EvictionRow{Eviction::kLru, "lru", kAdmissionRules, nullptr},
    EvictionRow{Eviction::kArc, "arc", kAdmissionRules, &make_arc_ghosts},
};
[[nodiscard]] constexpr const EvictionRow& row_of(Eviction eviction) {
  return kEvictions[static_cast<std::size_t>(eviction)];
}

/// Which blocks a full tier stores. (While it has free slots, it stores all.)
enum class Admission : std::uint8_t {
  kAdaptive,    ///< By the rule that the race has chosen.
  kAlways,      ///< All blocks: only rules that store all blocks race.
  kSecondOffer  ///< Blocks that were offered before: only the other rules race.
};
/// Their names, in the order of the enumerators.
inline constexpr std::array kAdmissionNames{"adaptive", "always", "second_offer"};

/// The rules that race for an eviction and an admission, at least one. The tier starts with the
/// last one.
[[nodiscard]] std::vector<PolicyRule> rules_of(Eviction eviction, Admission admission);

[[nodiscard]] const char* to_string(Eviction eviction);
[[nodiscard]] const char* to_string(Admission admission);
/// The inverse of to_string(). For other names they throw a ConfigError that lists the names.
[[nodiscard]] Eviction eviction_from(std::string_view name);
[[nodiscard]] Admission admission_from(std::string_view name);

}  // namespace kvferry::cpu_tier
