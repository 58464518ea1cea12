// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/prefetch.hpp"
#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvferry::cpu_tier {

/// Counts how often blocks that the tier does not hold were offered recently: 4 bytes for each.
/// Approximate: a key is identified by 29 bits in one bucket of 15 entries, so one in 30 million
/// unknown keys is mistaken for a known one. A full bucket forgets its oldest entry.
///
/// Used by one thread at a time. Only construction throws.
class OfferHistory {
 public:
  /// By default, this many blocks are remembered per slot of the tier: 16 bytes per slot. Few
  /// blocks return later than that: on the public trace, twice as many gain nothing, and half as
  /// many lose 0.6 points.
  static constexpr std::uint32_t kPerSlot = 4;

  /// Makes an empty history for at least `max_entries` blocks.
  explicit OfferHistory(std::uint64_t max_entries);

  /// Counts one offer of a block. Returns the number of its offers, including this one, at most
  /// kMaxHeat. A block after it proves that there were at least `at_least`.
  std::uint32_t count_offer(std::uint64_t hash, std::uint32_t at_least = 1);
  /// The number of offers, as far as they are remembered.
  [[nodiscard]] std::uint32_t num_offers(std::uint64_t hash) const;
  void prefetch(std::uint64_t hash) const { prefetch_to_write(&buckets_[bucket(hash)]); }
  void clear();
  [[nodiscard]] std::size_t size_bytes() const { return buckets_.size() * sizeof(Bucket); }

 private:
  static constexpr std::size_t kWays = 15;
  /// One cache line. An entry has 29 bits of the hash, then 3 bits for the count; 0: an empty
  /// entry.
  struct alignas(64) Bucket {
    std::array<std::uint32_t, kWays> entries{};
    std::uint32_t oldest = 0;

    [[nodiscard]] std::size_t find(std::uint32_t mark) const;
  };
  static_assert(sizeof(Bucket) == 64);

  [[nodiscard]] std::size_t bucket(std::uint64_t hash) const {
    return ((hash >> 32) * buckets_.size()) >> 32;
  }

  std::vector<Bucket, HugePageAllocator<Bucket>> buckets_;
};

}  // namespace kvferry::cpu_tier
