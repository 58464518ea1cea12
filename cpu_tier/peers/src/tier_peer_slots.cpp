// SPDX-License-Identifier: Apache-2.0
#include "tier_peer_slots.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace kvferry::cpu_tier {
namespace {

/// Slots and hints that are fetched before their use: as many lines as a core has under way.
constexpr std::size_t kAhead = 16;

/// Whether this word of an own slot of a shared tier fits the state.
bool agree(SlotState state, SharedState word) {
  switch (state) {
    case SlotState::kAbsent:
      return true;  // It is not an own slot.
    case SlotState::kFree:
      return word == SharedState::kFree;
    case SlotState::kWritable:
    case SlotState::kAborted:
      return word == SharedState::kFilling;
    case SlotState::kEvictable:
    case SlotState::kLeased:
      return word == SharedState::kReadable;
    case SlotState::kDying:        // The owner's own leases are not in the word.
    case SlotState::kQuarantined:  // It can also be set aside.
      return word != SharedState::kReadable;
  }
  return false;
}

}  // namespace

void TierPeerSlots::begin_fill(std::span<const SlotId> slots, std::uint32_t num_free) {
  if (num_free == 0) return;
  std::uint32_t num_begun = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (i + kAhead < slots.size()) slots_.prefetch(slots[i + kAhead]);
    num_begun += slots_.begin_fill(slots[i]) ? 1 : 0;
  }
  KVFERRY_CHECK(num_begun == num_free, std::to_string(num_begun) + " of " +
                                           std::to_string(num_free) +
                                           " free slots could begin to be filled");
}

void TierPeerSlots::publish(std::span<const SlotId> slots, const BlockIndex& index) {
  // Each slot goes through three steps, kAhead slots apart: a step reads what the one before has
  // fetched.
  std::array<TierDirectory::HintChange, kAhead> changes;
  for (std::size_t i = 0; i < slots.size() + 2 * kAhead; ++i) {
    if (i < slots.size()) slots_.prefetch(slots[i]);
    TierDirectory::HintChange& change = changes[i % kAhead];
    if (const std::size_t now = i - 2 * kAhead; now < slots.size()) {
      slots_.publish(slots[now], index.key(slots[now]), change);
    }
    if (const std::size_t next = i - kAhead; next < slots.size()) {
      change = slots_.prepare_publish(slots[next], index.key(slots[next]));
    }
  }
}

void TierPeerSlots::abandon(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) slots_.abandon(slot);
}

std::size_t TierPeerSlots::refill_unused(std::span<SlotId> slots) {
  for (const SlotId slot : slots) slots_.prefetch(slot);
  return front_of(slots, [this](SlotId slot) { return slots_.refill_unused(slot); });
}

std::size_t TierPeerSlots::evict(std::span<SlotId> slots) {
  return front_of(slots, [this](SlotId slot) { return slots_.evict(slot); });
}

std::size_t TierPeerSlots::forget(std::span<SlotId> slots) {
  return front_of(slots,
                  [this](SlotId slot) { return slots_.forget(slot) != SharedState::kDying; });
}

std::size_t TierPeerSlots::make_free(std::span<SlotId> slots) {
  return front_of(slots, [this](SlotId slot) {
    // Peers cannot use it any more either.
    if (slots_.word(slot).state() == SharedState::kReadable) {
      return slots_.forget(slot) != SharedState::kDying;
    }
    return slots_.try_free(slot);
  });
}

bool TierPeerSlots::any_read(SlotRange range) const {
  for (std::uint32_t slot = range.first; slot < range.end; ++slot) {
    if (slots_.word(SlotId(slot)).lessees() != 0) return true;
  }
  return false;
}

void TierPeerSlots::read_keys(SlotId first, std::span<std::optional<BlockKey>> keys) const {
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    const SlotId slot(first.value() + i);
    keys[i].reset();
    if (slots_.word(slot).can_be_read()) keys[i] = slots_.key_of(slot);
  }
}

void TierPeerSlots::prefetch(std::span<const BlockKey> keys, std::span<const SlotId> slots) const {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (slots[i] == BlockIndex::kNoSlot) slots_.prefetch(keys[i]);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (slots[i] == BlockIndex::kNoSlot) slots_.prefetch_slots(keys[i]);
  }
}

SlotId TierPeerSlots::guest_if_absent(std::span<const BlockKey> keys, std::span<const SlotId> slots,
                                      std::size_t i) {
  if (i % kAhead == 0) {
    const std::size_t count = std::min(kAhead, keys.size() - i);
    prefetch(keys.subspan(i, count), slots.subspan(i, count));
  }
  if (slots[i] != BlockIndex::kNoSlot) return slots[i];
  return guests_.find(keys[i]).value_or(BlockIndex::kNoSlot);
}

void TierPeerSlots::find(std::span<const BlockKey> keys, std::span<SlotId> slots) {
  if (slots_.is_alone()) return;
  for (std::size_t i = 0; i < keys.size(); ++i) slots[i] = guest_if_absent(keys, slots, i);
}

void TierPeerSlots::find_prefix(std::span<const BlockKey> keys, std::span<SlotId> slots) {
  if (slots_.is_alone()) return;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    slots[i] = guest_if_absent(keys, slots, i);
    if (slots[i] == BlockIndex::kNoSlot) return;
  }
}

void TierPeerSlots::mark_held(std::span<const BlockKey> keys, std::span<SlotId> slots) const {
  if (slots_.is_alone()) return;
  // Keys that no instance has are about to be stored, which changes their hints.
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (slots[i] == BlockIndex::kNoSlot) slots_.prefetch_to_change(keys[i]);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (slots[i] == BlockIndex::kNoSlot && slots_.has(keys[i])) slots[i] = kHeldByPeer;
  }
}

void TierPeerSlots::withdraw(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) slots_.withdraw(slot);
}

std::vector<SlotId> TierPeerSlots::take_withdrawn() {
  std::vector<SlotId> withdrawn;
  slots_.visit_withdrawn([&withdrawn](SlotId slot) { withdrawn.push_back(slot); });
  return withdrawn;
}

void TierPeerSlots::check_invariants(const SlotTable& table) const {
  for (std::uint32_t i = 0; i < table.end(); ++i) {
    const SlotWord word = slots_.word(SlotId(i));
    KVFERRY_CHECK(agree(table.state(SlotId(i)), word.state()),
                  "slot " + std::to_string(i) + " is " + to_string(table.state(SlotId(i))) +
                      ", but its word says " + std::to_string(word.bits));
  }
}

}  // namespace kvferry::cpu_tier
