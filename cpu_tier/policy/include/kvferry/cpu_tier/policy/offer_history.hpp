// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvferry::cpu_tier {

/// How often each of the blocks lately offered was offered, for blocks that the tier does not hold:
/// 4 bytes each. Approximate: a key is known by 29 bits in one bucket of 15, so that one in 30
/// million strangers is taken for another; a bucket forgets what came into it first.
///
/// One thread at a time. Nothing throws but construction.
class OfferHistory {
 public:
  /// Blocks remembered per slot of the tier, by default. How often a block comes back after more
  /// than that falls off quickly: on the public trace twice as many gain nothing and half as many
  /// lose 0.6 points. It is also what 16 bytes per slot hold.
  static constexpr std::uint32_t kPerSlot = 4;

  /// For at least `max_entries`; all forgotten.
  explicit OfferHistory(std::uint64_t max_entries);

  /// Counts one offer; returns how many there were, this one included, at most kMaxHeat. There were
  /// `at_least` as many: a block that stands after it proves that.
  std::uint32_t count_offer(std::uint64_t hash, std::uint32_t at_least = 1);
  /// How many offers there were, as far as they are remembered.
  [[nodiscard]] std::uint32_t num_offers(std::uint64_t hash) const;
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&buckets_[bucket(hash)], 1); }
  void clear();
  [[nodiscard]] std::size_t size_bytes() const { return buckets_.size() * sizeof(Bucket); }

 private:
  static constexpr std::size_t kWays = 15;
  /// One cache line. An entry is 29 bits of the hash over 3 bits of the count; 0 is empty.
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
