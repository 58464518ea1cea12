// SPDX-License-Identifier: Apache-2.0
// What must hold between the records, lists and counts of a SlotTable.
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/slots/slot_table.hpp"

#include <array>
#include <string>

namespace kvferry::cpu_tier {

void SlotTable::check_invariants() const {
  std::array<std::uint32_t, kNumSlotStates> counted{};
  for (std::uint32_t slot = 0; slot < lists_.max_slots(); ++slot) {
    const SlotRecord& record = lists_[SlotId(slot)];
    ++counted[static_cast<std::size_t>(record.state)];
    const bool is_readable =
        record.state == SlotState::kEvictable || record.state == SlotState::kLeased;
    KVFERRY_CHECK(readable(SlotId(slot)) == is_readable, "slot " + std::to_string(slot) + " is " +
                                                             to_string(record.state) +
                                                             ", but its bit says otherwise");
    const bool has_users =
        record.state == SlotState::kLeased || record.state == SlotState::kDying || record.awaited;
    KVFERRY_CHECK(has_users == (record.num_users != 0),
                  "slot " + std::to_string(slot) + " is " + to_string(record.state) + " with " +
                      std::to_string(record.num_users) + " leases or waiting requests");
    KVFERRY_CHECK(!record.awaited || record.state == SlotState::kEvictable,
                  "slot " + std::to_string(slot) + " is awaited, but " + to_string(record.state));
    const bool is_readable_one = is_readable || record.promise == 0;
    KVFERRY_CHECK(is_readable_one && (!record.stays || record.state == SlotState::kEvictable),
                  "slot " + std::to_string(slot) + " is " + to_string(record.state) +
                      ", but promised, or stays");
  }
  KVFERRY_CHECK(counted == counts_, "the counts differ from the slots' states");
  KVFERRY_CHECK(num_slots_ == lists_.max_slots() - count(SlotState::kAbsent),
                "the number of slots differs from the number that are not absent");

  lists_.check_invariants(count(SlotState::kFree), count(SlotState::kEvictable));
  KVFERRY_CHECK(segments_ == Segments::kTwo || lists_.num_linked(Segment::kProtected) == 0,
                "a protected slot in a table of one segment");
}

}  // namespace kvferry::cpu_tier
