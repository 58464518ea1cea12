// SPDX-License-Identifier: Apache-2.0
// What holds between the records, lists and counts of a SlotTable.
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/slots/slot_table.hpp"

#include <array>
#include <string>

namespace kvferry::cpu_tier {

void SlotTable::check_list(std::uint32_t list) const {
  // A list with a foreign slot, a cycle or a gap has another length than its slots.
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

void SlotTable::check_invariants() const {
  std::array<std::uint32_t, kNumSlotStates> counted{};
  for (std::uint32_t slot = 0; slot < max_slots_; ++slot) {
    const Record& record = records_[slot];
    ++counted[static_cast<std::size_t>(record.state)];
    const bool is_readable =
        record.state == SlotState::kEvictable || record.state == SlotState::kLeased;
    KVFERRY_CHECK(readable(SlotId(slot)) == is_readable, "slot " + std::to_string(slot) + " is " +
                                                             to_string(record.state) +
                                                             " and its bit says otherwise");
    const bool has_users =
        record.state == SlotState::kLeased || record.state == SlotState::kDying || record.awaited;
    KVFERRY_CHECK(has_users == (record.num_users != 0),
                  "slot " + std::to_string(slot) + " is " + to_string(record.state) + " with " +
                      std::to_string(record.num_users) + " leases or waiting requests");
    KVFERRY_CHECK(!record.awaited || record.state == SlotState::kEvictable,
                  "slot " + std::to_string(slot) + " is waited for and " + to_string(record.state));
  }
  KVFERRY_CHECK(counted == counts_, "the counts differ from the slots' states");
  KVFERRY_CHECK(num_slots_ == max_slots_ - count(SlotState::kAbsent),
                "the number of slots differs from what is not absent");

  std::uint32_t num_evictable = 0;
  for (std::uint32_t list = 0; list < kNumLists; ++list) {
    check_list(list);
    num_evictable += num_linked_[list];
  }
  KVFERRY_CHECK(num_evictable == count(SlotState::kEvictable), "an evictable slot is not listed");
  KVFERRY_CHECK(segments_ == Segments::kTwo || num_linked(Segment::kProtected) == 0,
                "a protected slot in a table of one segment");

  std::uint32_t num_stacked = 0;
  for (std::uint32_t slot = free_top(); slot != sentinel(kFreeRing); slot = records_[slot].hotter) {
    KVFERRY_CHECK(slot < max_slots_ && records_[slot].state == SlotState::kFree &&
                      records_[records_[slot].hotter].colder == slot &&
                      ++num_stacked <= count(SlotState::kFree),
                  "the free stack is broken at slot " + std::to_string(slot));
  }
  KVFERRY_CHECK(num_stacked == count(SlotState::kFree), "a free slot is not on the stack");
}

}  // namespace kvferry::cpu_tier
