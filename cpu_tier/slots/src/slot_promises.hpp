// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <cstdint>
#include <span>

namespace kvferry::cpu_tier {

class SlotClass;

/// What clients say about one class's blocks: TierPromises under the tier's lock. A view.
class SlotPromises {
 public:
  explicit SlotPromises(SlotClass& of) : of_(of) {}

  void promise(std::span<const BlockKey> keys);
  void end(std::span<const BlockKey> keys);
  std::uint32_t leave_early(std::span<const BlockKey> keys);

 private:
  SlotClass& of_;
};

}  // namespace kvferry::cpu_tier
