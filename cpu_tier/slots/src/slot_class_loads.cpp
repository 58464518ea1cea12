// SPDX-License-Identifier: Apache-2.0
// The slots in a load: lookup, lease, forget. A slot that the index leads to and that the table
// calls absent is a guest.
#include "kvferry/base/check.hpp"

#include "batches.hpp"
#include "slot_class.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace kvferry::cpu_tier {

std::size_t SlotClass::num_readable(std::span<const SlotId> slots) {
  std::size_t i = 0;
  while (true) {
    while (i < slots.size() && slots[i] != BlockIndex::kNoSlot && table_.readable(slots[i])) ++i;
    std::size_t end = i;
    while (end < slots.size() && slots[end] != BlockIndex::kNoSlot &&
           table_.state(slots[end]) == SlotState::kAbsent) {
      ++end;
    }
    if (end == i) return i;
    i += peers_->ask_for(slots.subspan(i, end - i));
    if (i < end) return i;
  }
}

PrefixHit SlotClass::lookup_prefix(std::span<const BlockKey> keys, PrefixHit known) {
  PrefixHit hit{eviction_epoch_, std::move(known.slots)};
  // A known slot is still valid if it still has the key and can be read.
  std::size_t num_held = 0;
  const std::size_t num_known = std::min(hit.slots.size(), keys.size());
  while (num_held < num_known && index_.key(hit.slots[num_held]) == keys[num_held]) ++num_held;
  hit.slots.resize(num_readable(std::span(hit.slots).first(num_held)));
  SlotBatch batch;
  std::size_t count = 0;
  std::size_t limit = kFirstBatch;
  for (std::size_t first = hit.slots.size(); first < keys.size(); first += count) {
    count = std::min(limit, keys.size() - first);
    limit = std::min(2 * limit, kBatch);
    const std::span<SlotId> slots = std::span(batch).first(count);
    index_.find(keys.subspan(first, count), slots);
    std::size_t num_found = num_readable(slots);
    if (num_found < count && slots[num_found] == BlockIndex::kNoSlot) {
      // It searches only as far as the prefix can reach, because every slot that peers find is
      // leased from them.
      const auto is_writable = [this](SlotId slot) {
        return slot != BlockIndex::kNoSlot && table_.state(slot) == SlotState::kWritable;
      };
      const std::span<SlotId> rest = slots.subspan(num_found);
      const auto num_open = static_cast<std::size_t>(
          std::find_if(rest.begin(), rest.end(), is_writable) - rest.begin());
      peers_->find_prefix(keys.subspan(first + num_found, num_open), rest.first(num_open));
      num_found += num_readable(rest);
    }
    hit.slots.insert(hit.slots.end(), slots.begin(),
                     slots.begin() + static_cast<std::ptrdiff_t>(num_found));
    if (num_found < count) break;
  }
  return hit;
}

void SlotClass::lookup(std::span<const BlockKey> keys, std::span<KeyState> states) {
  SlotBatch batch;
  for (std::size_t first = 0; first < keys.size(); first += kBatch) {
    const std::size_t count = std::min(kBatch, keys.size() - first);
    const std::span<SlotId> slots = std::span(batch).first(count);
    index_.find(keys.subspan(first, count), slots);
    peers_->find(keys.subspan(first, count), slots);
    std::size_t num_guests = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const SlotId slot = slots[i];
      if (slot == BlockIndex::kNoSlot) {
        states[first + i] = KeyState::kAbsent;
      } else if (table_.readable(slot)) {
        states[first + i] = KeyState::kReadable;
      } else if (table_.state(slot) == SlotState::kAbsent) {
        states[first + i] = KeyState::kReadable;
        slots[num_guests++] = slot;
      } else {
        states[first + i] = KeyState::kWritable;
      }
    }
    if (num_guests > 0) static_cast<void>(peers_->ask_for(slots.first(num_guests)));
  }
}

std::optional<NotReadable> SlotClass::lease(std::span<const BlockKey> keys,
                                            std::span<SlotId> slots) {
  index_.find(keys, slots);
  std::size_t num_found = num_readable(slots);
  if (num_found < slots.size()) {
    peers_->find_prefix(keys.subspan(num_found), slots.subspan(num_found));
    num_found += num_readable(slots.subspan(num_found));
    if (num_found < slots.size()) return NotReadable{num_found};
  }
  lease_slots(slots);
  dcheck_conserved();
  return std::nullopt;
}

std::optional<NotReadable> SlotClass::lease(std::uint64_t eviction_epoch,
                                            std::span<const SlotId> slots) {
  if (eviction_epoch != eviction_epoch_) return NotReadable{};
  lease_slots(slots);
  dcheck_conserved();
  return std::nullopt;
}

void SlotClass::lease_slots(std::span<const SlotId> slots) {
  count_won(slots);
  while (!slots.empty()) {
    slots = slots.subspan(table_.lease(slots));
    std::size_t num_guests = 0;
    while (num_guests < slots.size() && table_.state(slots[num_guests]) == SlotState::kAbsent) {
      ++num_guests;
    }
    if (num_guests > 0) peers_->lease(slots.first(num_guests));
    slots = slots.subspan(num_guests);
  }
}

void SlotClass::end_leases(std::span<const SlotId> slots) {
  const bool any_dying = table_.count(SlotState::kDying) > 0;
  while (!slots.empty()) {
    std::span<const SlotId> own = slots.last(table_.end_leases(slots));
    slots = slots.first(slots.size() - own.size());
    // These slots were dying. Peers may still read them.
    while (any_dying && !own.empty()) {
      std::array<SlotId, kStep> freed;
      std::size_t num_freed = 0;
      const std::size_t count = std::min(own.size(), kStep);
      for (const SlotId slot : own.last(count)) {
        if (table_.state(slot) == SlotState::kFree) freed[num_freed++] = slot;
      }
      set_aside_unless_free(std::span(freed).first(num_freed));
      own = own.first(own.size() - count);
    }
    std::size_t num_guests = 0;
    while (num_guests < slots.size() &&
           table_.state(slots[slots.size() - 1 - num_guests]) == SlotState::kAbsent) {
      ++num_guests;
    }
    if (num_guests > 0 && peers_->end_leases(slots.last(num_guests))) ++eviction_epoch_;
    slots = slots.first(slots.size() - num_guests);
  }
  dcheck_conserved();
}

void SlotClass::forget(std::span<const SlotId> slots, MoveKind why) {
  const std::uint32_t num_keys_before = index_.size();
  while (!slots.empty()) {
    const std::size_t count = std::min(slots.size(), kBatch);
    forget_readable(slots.last(count), why);
    slots = slots.first(slots.size() - count);
  }
  end_forgetting(num_keys_before);
}

void SlotClass::withdraw(std::span<const SlotId> slots) {
  peers_->withdraw(slots);
  forget(slots, MoveKind::kWithdrawn);
}

void SlotClass::forget_all(std::optional<WeightsId> of) {
  const std::uint32_t num_keys_before = index_.size();
  // It goes from the last slot to the first, so that a tier that forgot everything hands slots out
  // in ascending order again.
  SlotBatch batch;
  for (std::uint32_t end = table_.end(); end > 0;) {
    const auto first = static_cast<std::uint32_t>(end - std::min<std::size_t>(kBatch, end));
    std::size_t count = 0;
    for (std::uint32_t i = first; i < end; ++i) {
      if (!of || index_.key(SlotId(i)).is_of(*of)) batch[count++] = SlotId(i);
    }
    forget_readable(std::span(batch).first(count), MoveKind::kForgotten);
    end = first;
  }
  if (!of && peers_->hide_all()) ++eviction_epoch_;
  end_forgetting(num_keys_before);
}

void SlotClass::forget_readable(std::span<const SlotId> slots, MoveKind why) {
  SlotBatch own;
  SlotBatch guests;
  std::size_t num_own = 0;
  std::size_t num_guests = 0;
  for (std::size_t i = slots.size(); i-- > 0;) {
    if (table_.readable(slots[i])) {
      table_.forget(slots[i]);
      own[num_own++] = slots[i];
    } else if (table_.state(slots[i]) == SlotState::kAbsent) {
      guests[num_guests++] = slots[i];
    }
  }
  const std::span<SlotId> forgotten = std::span(own).first(num_own);
  note(forgotten, why);
  index_.erase(forgotten);
  for (const SlotId slot : forgotten.subspan(peers_->forget(forgotten))) {
    if (table_.state(slot) == SlotState::kFree) set_aside(slot);
  }
  if (num_guests > 0 && peers_->shun(std::span(guests).first(num_guests))) ++eviction_epoch_;
}

void SlotClass::set_aside_unless_free(std::span<SlotId> slots) {
  for (const SlotId slot : slots.subspan(peers_->make_free(slots))) {
    // The slot can be in a lease twice.
    if (table_.state(slot) == SlotState::kFree) set_aside(slot);
  }
}

void SlotClass::set_aside(SlotId slot) {
  table_.set_aside(slot);
  set_aside_.push_back(slot);
}

void SlotClass::forget_withdrawn() {
  if (const std::vector<SlotId> slots = peers_->take_withdrawn(); !slots.empty()) {
    forget(slots, MoveKind::kWithdrawn);
  }
}

void SlotClass::settle_set_aside() {
  // From the last part to the first: what is erased moves only the parts that were settled.
  for (std::size_t end = set_aside_.size(); end > 0;) {
    const std::size_t first = end - std::min(end, kBatch);
    const auto part = std::span(set_aside_).subspan(first, end - first);
    const std::size_t num_free = peers_->make_free(part);
    table_.free(part.first(num_free), SlotState::kQuarantined);
    const auto begin = set_aside_.begin() + static_cast<std::ptrdiff_t>(first);
    set_aside_.erase(begin, begin + static_cast<std::ptrdiff_t>(num_free));
    end = first;
  }
  dcheck_conserved();
}

void SlotClass::drop_idle_guests() {
  if (peers_->drop_idle()) ++eviction_epoch_;
}

}  // namespace kvferry::cpu_tier
