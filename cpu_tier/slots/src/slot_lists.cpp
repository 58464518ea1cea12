// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/slot_lists.hpp"

#include "kvferry/base/check.hpp"

#include <string>

namespace kvferry::cpu_tier {

SlotLists::SlotLists(std::uint32_t max_slots)
    : records_(std::size_t{max_slots} + kNumRings), max_slots_(max_slots) {
  for (std::uint32_t ring = 0; ring < kNumRings; ++ring) {
    records_[sentinel(ring)].colder = sentinel(ring);
    records_[sentinel(ring)].hotter = sentinel(ring);
  }
}

SlotId SlotLists::deepest_stay() const {
  for (std::uint32_t depth = PromiseLedger::kMaxDepth; depth > 0; --depth) {
    if (num_linked_[kOverdue + depth] > 0) return SlotId(coldest(kOverdue + depth));
  }
  return kNoSlot;
}

void SlotLists::check_list(std::uint32_t list) const {
  // A list with a foreign slot, a cycle or a gap does not have as many links as slots.
  std::uint32_t num_linked = 0;
  for (std::uint32_t slot = coldest(list); slot != sentinel(list); slot = records_[slot].hotter) {
    KVFERRY_CHECK(slot < max_slots_ && records_[slot].state == SlotState::kEvictable &&
                      list_of(records_[slot]) == list &&
                      records_[records_[slot].hotter].colder == slot &&
                      ++num_linked <= num_linked_[list],
                  "list " + std::to_string(list) + " of evictable slots is broken at slot " +
                      std::to_string(slot));
  }
  KVFERRY_CHECK(num_linked == num_linked_[list],
                "list " + std::to_string(list) + " of evictable slots is too short");
}

void SlotLists::check_stays() const {
  std::uint32_t num_staying = 0;
  for (std::uint32_t list = kOverdue; list < kEarly; ++list) num_staying += num_linked_[list];
  for (std::uint32_t slot = coldest(kAwaited); slot != sentinel(kAwaited);
       slot = records_[slot].hotter) {
    num_staying += records_[slot].stays ? 1 : 0;
  }
  KVFERRY_CHECK(num_stays_ == num_staying, std::to_string(num_stays_) + " slots stay, but " +
                                               std::to_string(num_staying) +
                                               " are on the lists of such slots");
}

void SlotLists::check_invariants(std::uint32_t num_free, std::uint32_t num_evictable) const {
  std::uint32_t num_listed = 0;
  for (std::uint32_t list = 0; list < kNumLists; ++list) {
    check_list(list);
    num_listed += num_linked_[list];
  }
  KVFERRY_CHECK(num_listed == num_evictable, "an evictable slot is not listed");
  check_stays();
  std::uint32_t num_stacked = 0;
  for (std::uint32_t slot = records_[sentinel(kFree)].hotter; slot != sentinel(kFree);
       slot = records_[slot].hotter) {
    KVFERRY_CHECK(slot < max_slots_ && records_[slot].state == SlotState::kFree &&
                      records_[records_[slot].hotter].colder == slot && ++num_stacked <= num_free,
                  "the free stack is broken at slot " + std::to_string(slot));
  }
  KVFERRY_CHECK(num_stacked == num_free, "a free slot is not on the stack");
}

}  // namespace kvferry::cpu_tier
