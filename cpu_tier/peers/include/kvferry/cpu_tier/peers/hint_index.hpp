// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::cpu_tier {

/// Where a key may be in a tier that engine instances share: buckets of hints in shared memory. A
/// hint is a slot and a tag of its key; it may be wrong, or missing: a reader that follows it
/// leases the slot first and compares the whole key then. So no process locks anything, a process
/// may die between any two steps, and what is lost is a hit.
///
/// A view; the memory, zeros at first, outlives it. Thread-safe between processes; every call ends
/// after one bucket.
class HintIndex {
 public:
  /// Of one cache line.
  static constexpr std::size_t kBucketHints = 8;
  /// Slots are below this: 0 is no hint.
  static constexpr std::uint32_t kMaxSlots = 0xffffffff;

  /// Hints of a table for so many slots: buckets are a quarter full then, or less, so that one of
  /// some thousand keys at most finds its bucket full. A prefix ends for others at its first hint
  /// that is lost: of half full ones two thirds of all prefixes of 128 blocks would.
  [[nodiscard]] static constexpr std::uint64_t num_hints_for(std::uint64_t num_slots) {
    std::uint64_t num_hints = kBucketHints;
    while (num_hints < 4 * num_slots) num_hints *= 2;
    return num_hints;
  }

  /// Slots that a key may be in, at most a bucket of them.
  struct Candidates {
    std::array<std::uint32_t, kBucketHints> slots;
    std::size_t count = 0;
    [[nodiscard]] const std::uint32_t* begin() const { return slots.data(); }
    [[nodiscard]] const std::uint32_t* end() const { return slots.data() + count; }
  };

  /// `hints`: a power of two of them, at least a bucket, at the beginning of a cache line.
  explicit HintIndex(std::span<std::atomic<std::uint64_t>> hints);

  /// Where to look for a key of that `hash`, all of whose bits are well mixed.
  [[nodiscard]] Candidates find(std::uint64_t hash) const;
  /// Notes that the slot has the key, in place of a hint for which `is_stale(slot)` says so, or of
  /// any if there is none. Another process may overwrite it at once.
  template <class IsStale>
  void insert(std::uint64_t hash, std::uint32_t slot, IsStale&& is_stale);
  /// Removes the hint, if it is there.
  void remove(std::uint64_t hash, std::uint32_t slot);
  /// The cache line of a key's hints, to be read soon, or changed: then another core that has it
  /// is asked to let it go once, and not twice.
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&hints_[first_of(hash)]); }
  void prefetch_to_change(std::uint64_t hash) const {
    __builtin_prefetch(&hints_[first_of(hash)], 1);
  }

 private:
  /// The high half of a hint is the hash's, which does not choose the bucket; the low half the slot
  /// and one.
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
  // Released: a reader that follows the hint may see what was written before it.
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
  // Another one each time: the same two keys would take each other's hint for ever.
  static_cast<void>(replace(slot % kBucketHints));
}

}  // namespace kvferry::cpu_tier
