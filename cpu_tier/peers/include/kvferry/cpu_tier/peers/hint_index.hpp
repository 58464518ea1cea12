// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/prefetch.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::cpu_tier {

/// Hints that lead from a key to a slot in a tier that engine instances share: buckets in shared
/// memory. A hint is a slot and a tag of its key. It can be wrong or missing: a reader that follows
/// it leases the slot first and then compares the whole key. So no process locks anything, and a
/// process can die between any two steps; the worst result is a missed hit.
///
/// A view; the memory outlives it and is zero at first. Thread-safe, also between processes; every
/// call touches one bucket only.
class HintIndex {
 public:
  /// Hints in a bucket, which is one cache line.
  static constexpr std::size_t kBucketHints = 8;
  /// Slot numbers are below this, because 0 means no hint.
  static constexpr std::uint32_t kMaxSlots = 0xffffffff;

  /// Number of hints in a table for this many slots. Buckets are then at most a quarter full on
  /// average, so at most one in several thousand keys finds its bucket full. For other instances a
  /// prefix ends at its first lost hint: with half full buckets, two thirds of all prefixes of 128
  /// blocks would lose one.
  [[nodiscard]] static constexpr std::uint64_t num_hints_for(std::uint64_t num_slots) {
    std::uint64_t num_hints = kBucketHints;
    while (num_hints < 4 * num_slots) num_hints *= 2;
    return num_hints;
  }

  /// Slots in which a key could be, at most one bucket of them.
  struct Candidates {
    std::array<std::uint32_t, kBucketHints> slots;
    std::size_t count = 0;
    [[nodiscard]] const std::uint32_t* begin() const { return slots.data(); }
    [[nodiscard]] const std::uint32_t* end() const { return slots.data() + count; }
  };

  /// `hints`: a power of two, at least one bucket, aligned to a cache line.
  explicit HintIndex(std::span<std::atomic<std::uint64_t>> hints);

  /// The slots to search for a key with that `hash`. All bits of the hash are well mixed.
  [[nodiscard]] Candidates find(std::uint64_t hash) const;
  /// Records that the slot has the key. It replaces a hint for which `is_stale(slot)` is true, or
  /// any hint if there is none. Another process can overwrite it at once.
  template <class IsStale>
  void insert(std::uint64_t hash, std::uint32_t slot, IsStale&& is_stale);
  /// Removes the hint if it is there.
  void remove(std::uint64_t hash, std::uint32_t slot);
  /// Prefetches the cache line of a key's hints, to read it or to change it. Before a change,
  /// another core that has the line gives it up only once, not twice.
  void prefetch(std::uint64_t hash) const { kvferry::prefetch(&hints_[first_of(hash)]); }
  void prefetch_to_change(std::uint64_t hash) const { prefetch_to_write(&hints_[first_of(hash)]); }

 private:
  /// The high half of a hint comes from the hash; these bits do not choose the bucket. The low half
  /// is the slot plus one.
  [[nodiscard]] static constexpr std::uint64_t hint_of(std::uint64_t hash, std::uint32_t slot) {
    return (hash & kTagMask) | (slot + 1U);
  }
  [[nodiscard]] std::size_t first_of(std::uint64_t hash) const {
    return (hash & bucket_mask_) * kBucketHints;
  }
  [[nodiscard]] std::span<std::atomic<std::uint64_t>> bucket_of(std::uint64_t hash) const {
    return hints_.subspan(first_of(hash), kBucketHints);
  }
  static constexpr std::uint64_t kTagMask = 0xffffffff00000000U;

  std::span<std::atomic<std::uint64_t>> hints_;
  std::uint64_t bucket_mask_;
};

template <class IsStale>
void HintIndex::insert(std::uint64_t hash, std::uint32_t slot, IsStale&& is_stale) {
  const std::uint64_t hint = hint_of(hash, slot);
  const auto bucket = bucket_of(hash);
  std::array<std::uint64_t, kBucketHints> seen;
  for (std::size_t i = 0; i < kBucketHints; ++i) {
    seen[i] = bucket[i].load(std::memory_order_relaxed);
    if (seen[i] == hint) return;
  }
  // Release order: a reader that follows the hint sees everything that was written before it.
  const auto replace = [&](std::size_t i) {
    return bucket[i].compare_exchange_strong(seen[i], hint, std::memory_order_release,
                                             std::memory_order_relaxed);
  };
  for (std::size_t i = 0; i < kBucketHints; ++i) {
    if (seen[i] == 0 && replace(i)) return;
  }
  for (std::size_t i = 0; i < kBucketHints; ++i) {
    if (seen[i] != 0 && is_stale(static_cast<std::uint32_t>(seen[i]) - 1U) && replace(i)) return;
  }
  // A different one each time; otherwise the same two keys would replace each other's hint forever.
  static_cast<void>(replace(slot % kBucketHints));
}

}  // namespace kvferry::cpu_tier
