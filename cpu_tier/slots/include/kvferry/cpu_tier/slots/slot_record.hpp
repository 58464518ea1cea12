// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/policy_rule.hpp"

#include <cstddef>
#include <cstdint>

namespace kvferry::cpu_tier {

/// The slot states of tier.hpp. Readable is kEvictable (no lease) or kLeased. An absent slot has no
/// memory: the tier has not grown that far, or the memory belongs to another slab class.
enum class SlotState : std::uint8_t {
  kAbsent,
  kFree,
  kWritable,
  kAborted,
  kEvictable,
  kLeased,
  kDying,
  kQuarantined
};
inline constexpr std::size_t kNumSlotStates = 8;
[[nodiscard]] const char* to_string(SlotState state);

/// What a SlotTable knows about one slot, except its key.
struct SlotRecord {
  /// Neighbours in the list of evictable slots or in the stack of free ones (slot_lists.hpp).
  std::uint32_t colder = 0;
  std::uint32_t hotter = 0;
  /// When the slot became the most recent of its list, by the clock of that list.
  std::uint32_t stamp = 0;
  /// Number of leases. If the slot is awaited: number of requests that wait.
  std::uint32_t num_users : 18 = 0;
  /// For a readable slot: 0; or, if it is promised, its depth in its prompt
  /// (PromiseLedger::depth_of()); or kLeavesEarly.
  std::uint8_t promise : 5 = 0;
  bool awaited : 1 = false;
  SlotState state : 3 = SlotState::kAbsent;
  Segment segment : 1 = Segment::kProbation;
  std::uint8_t heat : 3 = 0;
  /// For an evictable slot: its turn to leave came, and it stayed.
  bool stays : 1 = false;

  static constexpr std::uint32_t kMaxUsers = (1U << 18) - 1;
  static constexpr std::uint8_t kLeavesEarly = 31;
};
static_assert(sizeof(SlotRecord) == 16);

}  // namespace kvferry::cpu_tier
