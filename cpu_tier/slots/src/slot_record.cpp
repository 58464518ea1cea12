// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/slot_record.hpp"

namespace kvferry::cpu_tier {

const char* to_string(SlotState state) {
  switch (state) {
    case SlotState::kAbsent:
      return "absent";
    case SlotState::kFree:
      return "free";
    case SlotState::kWritable:
      return "writable";
    case SlotState::kAborted:
      return "aborted";
    case SlotState::kEvictable:
      return "evictable";
    case SlotState::kLeased:
      return "leased";
    case SlotState::kDying:
      return "dying";
    case SlotState::kQuarantined:
      return "quarantined";
  }
  return "unknown";
}

}  // namespace kvferry::cpu_tier
