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

/// The table of eviction policies: whatever has a row here can be chosen by its name, by users too.
namespace kvferry::cpu_tier {

class EvictionMemory;

/// The rules that race in an adaptive tier; plain LRU is the last one, with which it begins, and
/// which the others are measured by. Each is the best, by a margin, of some kind of traffic
/// (docs/decisions/policies.md). None of them lets a block leave before the blocks that stand after
/// it in a prompt.
inline constexpr std::array kRacingRules{
    PolicyRule{"frequent", AdmissionRule::kHotterThanVictim, {}},
    PolicyRule{"second_offer", AdmissionRule::kOfferedBefore, {}},
    PolicyRule{"half", AdmissionRule::kAll, {VictimRule::From::kProbationAbove, 0.5F}},
    PolicyRule{"lru", AdmissionRule::kAll, {}},
};
/// What is left of them if only the admission adapts.
inline constexpr std::array kAdmissionRules{kRacingRules[1], kRacingRules[3]};

/// Which blocks leave when room is needed.
enum class Eviction : std::uint8_t {
  kAdaptive,  ///< As the rule says that the race chose (policy_race.hpp).
  kLru,       ///< The least recently used one.
  kArc        ///< By the share of what was seen once that ARC's ghosts learn (Megiddo, Modha 2003).
};

/// arc_ghosts.hpp
[[nodiscard]] std::unique_ptr<EvictionMemory> make_arc_ghosts(std::uint32_t max_slots);

struct EvictionRow {
  Eviction eviction;
  const char* name;
  /// Which of them count is also said by the Admission.
  std::span<const PolicyRule> rules;
  /// Makes what chooses the victims; null if the rules do.
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

/// Which blocks are stored at all, once the tier is full. (While it has free slots, all are.)
enum class Admission : std::uint8_t {
  kAdaptive,    ///< As the rule says that the race chose.
  kAlways,      ///< All: only rules that store all count.
  kSecondOffer  ///< Those that were offered before: only rules that do not store all count.
};
/// Their names, in the order of the enumerators.
inline constexpr std::array kAdmissionNames{"adaptive", "always", "second_offer"};

/// The rules that an eviction and an admission leave to choose from, the one to begin with last; at
/// least one.
[[nodiscard]] std::vector<PolicyRule> rules_of(Eviction eviction, Admission admission);

[[nodiscard]] const char* to_string(Eviction eviction);
[[nodiscard]] const char* to_string(Admission admission);
/// The inverse of to_string(). Throw ConfigError that lists the names.
[[nodiscard]] Eviction eviction_from(std::string_view name);
[[nodiscard]] Admission admission_from(std::string_view name);

}  // namespace kvferry::cpu_tier
