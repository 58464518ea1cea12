// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvferry/base/ids.hpp"
#include "kvferry/gpu/device.hpp"

namespace kvferry::cpu_tier {

/// One rank's pinned host memory: `num_slots` slots of `slot_bytes` each, mapped, populated and registered.
/// Construction does all of it or throws and leaves nothing behind; the budget is checked (memory_budget.hpp)
/// before a page is touched. MADV_DONTFORK. Immutable afterwards, so safe from any thread; the owner quiesces
/// all copies before destroying it.
class Arena {
 public:
  /// Throws ResourceError (the limit, the request, the remedy) or DeviceError (registration).
  Arena(gpu::Device& device, std::uint64_t slot_bytes, std::uint32_t num_slots);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::uint64_t slot_bytes() const { return slot_bytes_; }
  [[nodiscard]] std::uint32_t num_slots() const { return num_slots_; }
  /// Host address of a slot. Slots are contiguous: slot s + 1 follows slot s.
  [[nodiscard]] std::uintptr_t slot_address(SlotId slot) const {
    return base_ + std::uint64_t{slot.value()} * slot_bytes_;
  }
  /// Number of slots per registered piece: a copy must not straddle slots of different pieces (slot / this).
  [[nodiscard]] std::uint32_t slots_per_piece() const { return slots_per_piece_; }

 private:
  std::uintptr_t base_ = 0;
  std::uint64_t mapped_bytes_ = 0;
  std::uint64_t slot_bytes_ = 0;
  std::uint32_t num_slots_ = 0;
  std::uint32_t slots_per_piece_ = 0;
  std::vector<std::unique_ptr<gpu::HostRegistration>> registrations_;
};

}  // namespace kvferry::cpu_tier
