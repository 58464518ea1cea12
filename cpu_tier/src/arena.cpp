// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/arena.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

namespace kvferry::cpu_tier {
namespace {

/// The arena's size, when it can exist and the machine has room for it.
std::uint64_t checked_bytes(std::uint64_t slot_bytes, std::uint32_t num_slots,
                            const MachineRoot& machine) {
  if (slot_bytes == 0 || num_slots == 0) {
    throw ConfigError("an arena of " + std::to_string(num_slots) + " slots of " +
                      std::to_string(slot_bytes) +
                      " bytes holds nothing: make the CPU tier larger");
  }
  if (slot_bytes > std::numeric_limits<std::uint64_t>::max() / num_slots) {
    throw ResourceError(std::to_string(num_slots) + " slots of " + std::to_string(slot_bytes) +
                        " bytes cannot be addressed: make the CPU tier smaller");
  }
  check_memory_budget(slot_bytes * num_slots, machine);
  return slot_bytes * num_slots;
}

}  // namespace

std::uint64_t slots_per_piece(std::uint64_t slot_bytes, std::uint64_t page_bytes,
                              std::uint64_t max_piece_bytes) {
  const std::uint64_t quantum = page_bytes / std::gcd(page_bytes, slot_bytes);
  return std::max(max_piece_bytes / slot_bytes / quantum, std::uint64_t{1}) * quantum;
}

Arena::Arena(gpu::Device& device, std::uint64_t slot_bytes, std::uint32_t num_slots,
             const ArenaOptions& options)
    : slot_bytes_(slot_bytes),
      num_slots_(num_slots),
      mapping_(checked_bytes(slot_bytes, num_slots, options.machine)) {
  // The last slots of a small arena are one short piece, so that a larger figure would mean the
  // same.
  slots_per_piece_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      cpu_tier::slots_per_piece(slot_bytes, HostMapping::page_bytes(), options.max_piece_bytes),
      num_slots));
  mapping_.populate();

  const std::uint64_t num_pieces =
      (std::uint64_t{num_slots} + slots_per_piece_ - 1) / slots_per_piece_;
  registrations_.reserve(num_pieces);
  for (std::uint64_t piece = 0; piece < num_pieces; ++piece) {
    const std::uint64_t begin = piece * slots_per_piece_ * slot_bytes;
    const std::uint64_t end =
        piece + 1 == num_pieces ? mapping_.size_bytes() : begin + slots_per_piece_ * slot_bytes;
    if (KVFERRY_FAULT_POINT("arena.register")) {
      throw DeviceError("registering piece " + std::to_string(piece) + " of " +
                        std::to_string(num_pieces) + " failed on request of a test");
    }
    registrations_.push_back(
        device.register_host(reinterpret_cast<void*>(mapping_.address() + begin), end - begin));
  }
}

Arena::~Arena() = default;

}  // namespace kvferry::cpu_tier
