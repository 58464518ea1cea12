// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/divisor.hpp"
#include "kvferry/base/ids.hpp"
#include "kvferry/base/prefetch.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/peers/hint_index.hpp"
#include "kvferry/cpu_tier/peers/slot_word.hpp"
#include "kvferry/cpu_tier/peers/tier_layout.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/peers.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// The records of a shared tier, as one engine instance sees them: which instance it is, how many
/// chunks its ranks have ready, which name space it uses, which instance owns which chunk, what the
/// slots hold, and where a key could be. This class makes no transition; slot() returns the word
/// that does.
///
/// The memory outlives this. Any thread can call the const functions.
class TierRecords {
 public:
  TierRecords(std::span<std::byte> metadata, const TierPlaces& places, const TierShape& shape,
              std::uint64_t name_space);
  TierRecords(const TierRecords&) = delete;
  TierRecords& operator=(const TierRecords&) = delete;

  // ---- the instance ----

  /// Makes this the instance of that record. Call it before any other thread uses this object.
  void set_self(InstanceId self);
  [[nodiscard]] InstanceId self() const { return self_; }
  /// The owner value of the chunks that this instance owns.
  [[nodiscard]] ChunkOwner own() const { return own_; }
  [[nodiscard]] std::uint64_t name_space() const {
    return name_space_.load(std::memory_order_relaxed);
  }
  void set_name_space(std::uint64_t name_space);
  /// Chunks [0, reach()) are ready on all ranks of this instance.
  [[nodiscard]] std::uint32_t reach() const { return num_reached_.load(std::memory_order_relaxed); }
  void set_reach(std::uint32_t num_chunks) {
    num_reached_.store(num_chunks, std::memory_order_relaxed);
  }
  [[nodiscard]] std::span<InstanceRecord> instances() { return instances_; }
  [[nodiscard]] std::span<const InstanceRecord> instances() const { return instances_; }
  [[nodiscard]] InstanceRecord& own_record() { return instances_[self_.value()]; }
  [[nodiscard]] const InstanceRecord& own_record() const { return instances_[self_.value()]; }

  // ---- chunks ----

  [[nodiscard]] const TierShape& shape() const { return shape_; }
  [[nodiscard]] ChunkRecord& chunk(ChunkId chunk) { return chunks_[chunk.value()]; }
  [[nodiscard]] const ChunkRecord& chunk(ChunkId chunk) const { return chunks_[chunk.value()]; }
  [[nodiscard]] bool owns(ChunkId which) const {
    return chunk(which).owner.load(std::memory_order_relaxed) == own_.bits;
  }
  [[nodiscard]] ChunkShape shape_of(ChunkId which) const;
  /// Whether the contents of an own chunk are of this instance's name space.
  [[nodiscard]] bool is_of_name_space(ChunkId which) const {
    return chunk(which).name_space.load(std::memory_order_relaxed) == name_space();
  }
  /// The divisions of the chunks of this name space, whichever instance owns them; each shape once.
  /// O(chunks).
  [[nodiscard]] std::vector<ChunkShape> shapes() const;

  // ---- slots ----

  [[nodiscard]] SharedSlot slot(SlotPlace place) const {
    return SharedSlot(slots_[number_of(place)].word);
  }
  [[nodiscard]] SlotKey& slot_key(SlotPlace place) { return slots_[number_of(place)].key; }
  [[nodiscard]] const SlotKey& slot_key(SlotPlace place) const {
    return slots_[number_of(place)].key;
  }
  [[nodiscard]] std::uint64_t number_of(SlotPlace place) const {
    return std::uint64_t{place.chunk.value()} * shape_.max_chunk_slots + place.index;
  }
  [[nodiscard]] SlotPlace place_of(std::uint32_t number) const {
    return {ChunkId(chunk_slots_.quotient(number)), chunk_slots_.remainder(number)};
  }
  /// The key of a readable slot of this name space, if it is complete.
  [[nodiscard]] std::optional<BlockKey> key_of(SlotPlace place) const {
    return key_under(slot(place).load(), place);
  }
  /// Whether a complete key of any name space belongs to this word of the slot.
  [[nodiscard]] bool has_key(SlotWord word, SlotPlace place) const;
  /// Whether the slot holds the key in this name space, according to its words.
  [[nodiscard]] bool holds(SlotPlace place, const BlockKey& key) const;
  /// Whether a hint leads to no readable slot. The number can be arbitrary, because another program
  /// could have written it.
  [[nodiscard]] bool is_stale_hint(std::uint32_t number) const {
    return number >= slots_.size() ||
           !SlotWord{slots_[number].word.load(std::memory_order_relaxed)}.can_be_read();
  }
  /// The stamp with which a key is written under that word.
  [[nodiscard]] std::uint32_t stamp_of(SlotWord word, ChunkId chunk) const;
  /// Number of readable slots of this name space that do not belong to this instance. O(slots).
  [[nodiscard]] std::uint64_t num_readable_of_others() const;

  // ---- where a key could be ----

  [[nodiscard]] HintIndex& hints() { return hints_; }
  [[nodiscard]] const HintIndex& hints() const { return hints_; }
  [[nodiscard]] static std::uint64_t hash_of(const SlotKey::Content& content);
  [[nodiscard]] std::uint64_t hash_of(const BlockKey& key) const {
    return hash_of({key, name_space()});
  }

  // Prefetching of cache lines.
  void prefetch(SlotPlace place) const { prefetch_to_write(&slots_[number_of(place)]); }
  void prefetch_slots(const BlockKey& key) const;

 private:
  /// The key that belongs to this word of the slot, if it is complete and of this name space.
  [[nodiscard]] std::optional<BlockKey> key_under(SlotWord word, SlotPlace place) const;

  const TierShape shape_;
  const Divisor chunk_slots_;  ///< For a chunk with the most slots.
  std::span<InstanceRecord> instances_;
  std::span<ChunkRecord> chunks_;
  std::span<SlotLine> slots_;
  HintIndex hints_;
  std::atomic<std::uint64_t> name_space_;
  std::atomic<std::uint32_t> num_reached_;
  InstanceId self_;
  ChunkOwner own_;
};

}  // namespace kvferry::cpu_tier
