// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::bench {

/// The reference for the tier's metadata: the least that maps a key to a number. It is a flat hash
/// table with keys and values in one array, linear probing, at most half full, backward-shift
/// deletion, and entries fetched 16 keys ahead. It has no states, no order of eviction and no lock.
/// Used by one thread at a time.
class BareTable {
 public:
  static constexpr std::uint32_t kAbsent = 0xffffffff;

  /// For at most `max_keys`. Throws std::bad_alloc.
  explicit BareTable(std::uint32_t max_keys);
  /// Sets `values[i]` to the value of `keys[i]`, or kAbsent. The spans have the same length.
  void find(std::span<const cpu_tier::BlockKey> keys, std::span<std::uint32_t> values) const;
  /// The keys are absent and distinct, and no value is kAbsent.
  void insert(std::span<const cpu_tier::BlockKey> keys, std::span<const std::uint32_t> values);
  /// The keys are present.
  void erase(std::span<const cpu_tier::BlockKey> keys);

 private:
  struct Entry {
    cpu_tier::BlockKey key;
    std::uint32_t value = kAbsent;
  };

  [[nodiscard]] std::size_t home(const cpu_tier::BlockKey& key) const {
    return static_cast<std::size_t>(key.mixed() >> home_shift_);
  }
  /// The place of the key, or the gap where it would be.
  [[nodiscard]] std::size_t position_of(const cpu_tier::BlockKey& key) const;
  void erase_at(std::size_t position);
  /// Calls work(i) for every key, after it has fetched the key's entry.
  template <class Work>
  void for_each(std::span<const cpu_tier::BlockKey> keys, const Work& work) const;

  std::vector<Entry, cpu_tier::HugePageAllocator<Entry>> entries_;
  std::size_t mask_;
  unsigned home_shift_;
};

}  // namespace kvferry::bench
