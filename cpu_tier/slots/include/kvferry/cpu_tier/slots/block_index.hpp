// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// An exact map from key to slot: every hit has compared the full key. It is a flat hash table of
/// 8-byte entries with linear probing, at most half full, with backward-shift deletion (no
/// tombstones, so it never degrades). Its size is fixed at construction. The keys are in an array
/// indexed by slot. All calls take batches, so that the cache misses of 32 keys overlap.
///
/// One thread at a time. Nothing throws but construction.
class BlockIndex {
 public:
  /// The result of find() for an absent key.
  static constexpr SlotId kNoSlot{0xffffffff};
  [[nodiscard]] static bool any_absent(std::span<const SlotId> slots) {
    return std::find(slots.begin(), slots.end(), kNoSlot) != slots.end();
  }
  /// Home and tag of an entry share 32 bits, and the table is at most half full.
  static constexpr std::uint32_t kMaxSlots = std::uint32_t{1} << 31;

  /// For slots [0, max_slots). Throws ConfigError above kMaxSlots, std::bad_alloc.
  explicit BlockIndex(std::uint32_t max_slots);

  /// Sets `slots[i]` to the slot of `keys[i]`, or to kNoSlot. The spans have the same length.
  void find(std::span<const BlockKey> keys, std::span<SlotId> slots) const;
  /// The same if the caller has the keys' mixed() in `hashes`.
  void find(std::span<const BlockKey> keys, std::span<const std::uint64_t> hashes,
            std::span<SlotId> slots) const;
  /// Maps `keys[i]` to `slots[i]`. The spans have the same length. The keys are absent and
  /// distinct, and the slots are unmapped.
  void insert(std::span<const BlockKey> keys, std::span<const SlotId> slots);
  /// The same if the caller has the keys' mixed() in `hashes`.
  void insert(std::span<const BlockKey> keys, std::span<const std::uint64_t> hashes,
              std::span<const SlotId> slots);
  /// Unmaps the keys of `slots`. Each slot is mapped.
  void erase(std::span<const SlotId> slots);

  /// The key that was last mapped to `slot`.
  [[nodiscard]] const BlockKey& key(SlotId slot) const { return keys_[slot.value()]; }
  /// Number of mapped keys.
  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::size_t capacity() const { return entries_.size(); }

  /// Checks the whole table: no gap lies between an entry and its home, and each entry matches its
  /// key. For tests.
  void check_invariants() const;

 private:
  struct Entry {
    std::uint32_t tag = 0;
    std::uint32_t slot = kNoSlot.value();
  };

  static std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }
  static std::uint32_t tag_of(const BlockKey& key) { return tag_of(key.mixed()); }
  /// find() and insert(), which call `tag_of_key(i)` once for each key.
  template <class TagOfKey>
  void find_by_tag(std::span<const BlockKey> keys, const TagOfKey& tag_of_key,
                   std::span<SlotId> slots) const;
  template <class TagOfKey>
  void insert_by_tag(std::span<const BlockKey> keys, const TagOfKey& tag_of_key,
                     std::span<const SlotId> slots);
  [[nodiscard]] std::uint32_t home(std::uint32_t tag) const { return tag >> home_shift_; }
  [[nodiscard]] bool empty(std::uint32_t position) const {
    return entries_[position].slot == kNoSlot.value();
  }
  [[nodiscard]] std::uint32_t after(std::uint32_t position) const { return (position + 1) & mask_; }
  /// The first position from `position` on that is empty or holds `tag`.
  [[nodiscard]] std::uint32_t probe(std::uint32_t position, std::uint32_t tag) const;
  /// The first position from `position` on that is empty or holds `key`.
  [[nodiscard]] std::uint32_t probe(std::uint32_t position, std::uint32_t tag,
                                    const BlockKey& key) const;
  void erase_at(std::uint32_t position);

  std::vector<Entry, HugePageAllocator<Entry>> entries_;
  std::vector<BlockKey, HugePageAllocator<BlockKey>> keys_;
  std::uint32_t mask_ = 0;
  std::uint32_t home_shift_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace kvferry::cpu_tier
