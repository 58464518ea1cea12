// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/block_index.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/prefetch.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

namespace kvferry::cpu_tier {
namespace {

/// Keys that insert() and erase() fetch together: enough to hide the memory's latency, and few
/// enough for the L1 cache.
constexpr std::size_t kProbedAtOnce = 32;
/// find() fetches an index entry this many keys before it reads it, and a slot's key this many
/// before it compares.
constexpr std::size_t kAhead = 16;
constexpr std::size_t kMinCapacity = 16;

std::uint32_t checked(std::uint32_t max_slots) {
  if (max_slots > BlockIndex::kMaxSlots) {
    throw ConfigError("a CPU tier of " + std::to_string(max_slots) + " slots; at most " +
                      std::to_string(BlockIndex::kMaxSlots) + " are possible: use larger blocks");
  }
  return max_slots;
}

void prefetch_key(const BlockKey& key) {
  const auto* bytes = reinterpret_cast<const char*>(&key);
  prefetch(bytes);
  prefetch(bytes + sizeof(BlockKey) - 1);  // 40 bytes may straddle two cache lines.
}

/// Calls `work(first, count)` for consecutive ranges of at most kProbedAtOnce that cover [0, size).
template <class Work>
void for_each_batch(std::size_t size, const Work& work) {
  for (std::size_t first = 0; first < size; first += kProbedAtOnce) {
    work(first, std::min(kProbedAtOnce, size - first));
  }
}

}  // namespace

BlockIndex::BlockIndex(std::uint32_t max_slots)
    : entries_(std::bit_ceil(std::max(kMinCapacity, std::size_t{checked(max_slots)} * 2))),
      keys_(max_slots),
      mask_(static_cast<std::uint32_t>(entries_.size() - 1)),
      home_shift_(static_cast<std::uint32_t>(32 - std::countr_zero(entries_.size()))) {}

std::uint32_t BlockIndex::probe(std::uint32_t position, std::uint32_t tag) const {
  while (!empty(position) && entries_[position].tag != tag) position = after(position);
  return position;
}

std::uint32_t BlockIndex::probe(std::uint32_t position, std::uint32_t tag,
                                const BlockKey& key) const {
  position = probe(position, tag);
  while (!empty(position) && !(keys_[entries_[position].slot] == key)) {
    position = probe(after(position), tag);
  }
  return position;
}

void BlockIndex::find(std::span<const BlockKey> keys, std::span<SlotId> slots) const {
  find_by_tag(
      keys, [keys](std::size_t i) { return tag_of(keys[i]); }, slots);
}

void BlockIndex::find(std::span<const BlockKey> keys, std::span<const std::uint64_t> hashes,
                      std::span<SlotId> slots) const {
  KVFERRY_CHECK(keys.size() == hashes.size(), "find() with spans of different lengths");
  find_by_tag(
      keys, [hashes](std::size_t i) { return tag_of(hashes[i]); }, slots);
}

template <class TagOfKey>
void BlockIndex::find_by_tag(std::span<const BlockKey> keys, const TagOfKey& tag_of_key,
                             std::span<SlotId> slots) const {
  KVFERRY_CHECK(keys.size() == slots.size(), "find() with spans of different lengths");
  constexpr std::size_t kRing = 4 * kAhead;  // A power of two above the 2 * kAhead keys under way.
  std::array<std::uint32_t, kRing> tags;
  std::array<std::uint32_t, kRing> positions;
  const std::size_t size = keys.size();
  for (std::size_t step = 0; step < size + 2 * kAhead; ++step) {
    if (const std::size_t i = step; i < size) {
      const std::uint32_t tag = tag_of_key(i);
      tags[i % kRing] = tag;
      __builtin_prefetch(&entries_[home(tag)]);
    }
    // Before a stage's first key, its index wraps around and is not below `size`.
    if (const std::size_t i = step - kAhead; i < size) {
      const std::uint32_t tag = tags[i % kRing];
      const std::uint32_t position = probe(home(tag), tag);
      positions[i % kRing] = position;
      if (!empty(position)) prefetch_key(keys_[entries_[position].slot]);
    }
    if (const std::size_t i = step - 2 * kAhead; i < size) {
      std::uint32_t position = positions[i % kRing];
      if (!empty(position)) position = probe(position, tags[i % kRing], keys[i]);
      slots[i] = SlotId(entries_[position].slot);
    }
  }
}

void BlockIndex::insert(std::span<const BlockKey> keys, std::span<const SlotId> slots) {
  insert_by_tag(
      keys, [keys](std::size_t i) { return tag_of(keys[i]); }, slots);
}

void BlockIndex::insert(std::span<const BlockKey> keys, std::span<const std::uint64_t> hashes,
                        std::span<const SlotId> slots) {
  KVFERRY_CHECK(keys.size() == hashes.size(), "insert() with spans of different lengths");
  insert_by_tag(
      keys, [hashes](std::size_t i) { return tag_of(hashes[i]); }, slots);
}

template <class TagOfKey>
void BlockIndex::insert_by_tag(std::span<const BlockKey> keys, const TagOfKey& tag_of_key,
                               std::span<const SlotId> slots) {
  KVFERRY_CHECK(keys.size() == slots.size(), "insert() with spans of different lengths");
  for_each_batch(keys.size(), [&](std::size_t first, std::size_t count) {
    std::array<std::uint32_t, kProbedAtOnce> tags;
    for (std::size_t i = 0; i < count; ++i) {
      tags[i] = tag_of_key(first + i);
      __builtin_prefetch(&entries_[home(tags[i])], 1);
      __builtin_prefetch(&keys_[slots[first + i].value()], 1);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const BlockKey& key = keys[first + i];
      const SlotId slot = slots[first + i];
      std::uint32_t position = probe(home(tags[i]), tags[i]);
      if (!empty(position)) position = probe(position, tags[i], key);
      KVFERRY_CHECK(empty(position), "a key was inserted that slot " +
                                         std::to_string(entries_[position].slot) + " holds");
      keys_[slot.value()] = key;
      entries_[position] = Entry{tags[i], slot.value()};
      ++size_;
    }
  });
}

void BlockIndex::erase(std::span<const SlotId> slots) {
  for_each_batch(slots.size(), [&](std::size_t first, std::size_t count) {
    std::array<std::uint32_t, kProbedAtOnce> tags;
    for (std::size_t i = 0; i < count; ++i) prefetch_key(keys_[slots[first + i].value()]);
    for (std::size_t i = 0; i < count; ++i) {
      tags[i] = tag_of(keys_[slots[first + i].value()]);
      __builtin_prefetch(&entries_[home(tags[i])], 1);
    }
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t position = home(tags[i]);
      while (!empty(position) && entries_[position].slot != slots[first + i].value()) {
        position = after(position);
      }
      KVFERRY_CHECK(
          !empty(position),
          "the key of slot " + std::to_string(slots[first + i].value()) + " is not in the index");
      erase_at(position);
    }
  });
}

void BlockIndex::erase_at(std::uint32_t position) {
  std::uint32_t hole = position;
  for (std::uint32_t next = after(hole); !empty(next); next = after(next)) {
    // An entry fills the hole unless its home lies after the hole (cyclically).
    const std::uint32_t from_home = (next - home(entries_[next].tag)) & mask_;
    if (from_home >= ((next - hole) & mask_)) {
      entries_[hole] = entries_[next];
      hole = next;
    }
  }
  entries_[hole] = Entry{};
  --size_;
}

void BlockIndex::check_invariants() const {
  std::uint32_t num_entries = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const auto position = static_cast<std::uint32_t>(i);
    if (empty(position)) continue;
    ++num_entries;
    const Entry& entry = entries_[position];
    const BlockKey& key = keys_[entry.slot];
    KVFERRY_CHECK(entry.tag == tag_of(key), "an index entry does not fit its key");
    KVFERRY_CHECK(probe(home(entry.tag), entry.tag, key) == position,
                  "the key of slot " + std::to_string(entry.slot) + " cannot be found");
  }
  KVFERRY_CHECK(num_entries == size_,
                std::to_string(num_entries) + " entries, counted " + std::to_string(size_));
}

}  // namespace kvferry::cpu_tier
