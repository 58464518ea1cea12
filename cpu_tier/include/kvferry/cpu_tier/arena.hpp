// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/host_mapping.hpp"
#include "kvferry/cpu_tier/memory_budget.hpp"
#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvferry::cpu_tier {

struct ArenaOptions {
  /// Most bytes of one registration. 2 GiB: one call over hundreds of GiB blocks CUDA in every
  /// process of the node for minutes (TensorRT-LLM#17773), and from 512 GiB on it fails
  /// (vllm#51081).
  std::uint64_t max_piece_bytes = std::uint64_t{2} << 30;
  /// Where the memory budget is read from.
  MachineRoot machine = {};
};

/// Slots per registration: as many as fit into `max_piece_bytes` such that a piece ends where a
/// page and a slot end, because no copy may straddle two registrations and no page be in two. At
/// least one such multiple: pieces are larger than asked for where lcm(slot_bytes, page_bytes) is.
/// All arguments > 0.
[[nodiscard]] std::uint64_t slots_per_piece(std::uint64_t slot_bytes, std::uint64_t page_bytes,
                                            std::uint64_t max_piece_bytes);

/// One rank's pinned host memory: `num_slots` slots of `slot_bytes` each, mapped, populated and
/// registered. Construction does all of it or throws and leaves nothing behind; the budget is
/// checked (memory_budget.hpp) before a page is touched. MADV_DONTFORK. Immutable afterwards, so
/// safe from any thread; the owner quiesces all copies before destroying it. The device outlives
/// it.
class Arena {
 public:
  /// Throws ConfigError (nothing to hold), ResourceError (the limit, the request, the remedy) or
  /// DeviceError (registration).
  Arena(gpu::Device& device, std::uint64_t slot_bytes, std::uint32_t num_slots,
        const ArenaOptions& options = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::uint64_t slot_bytes() const { return slot_bytes_; }
  [[nodiscard]] std::uint32_t num_slots() const { return num_slots_; }
  /// Host address of a slot. Slots are contiguous: slot s + 1 follows slot s.
  [[nodiscard]] std::uintptr_t slot_address(SlotId slot) const {
    return mapping_.address() + std::uint64_t{slot.value()} * slot_bytes_;
  }
  /// Number of slots per registered piece: a copy must not straddle slots of different pieces (slot
  /// / this).
  [[nodiscard]] std::uint32_t slots_per_piece() const { return slots_per_piece_; }

 private:
  std::uint64_t slot_bytes_ = 0;
  std::uint32_t num_slots_ = 0;
  std::uint32_t slots_per_piece_ = 0;
  HostMapping mapping_;
  /// After the mapping, so that every piece is unregistered before the memory goes, in a failed
  /// construction too.
  std::vector<std::unique_ptr<gpu::HostRegistration>> registrations_;
};

}  // namespace kvferry::cpu_tier
