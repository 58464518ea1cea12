// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvferry::cpu_tier {

/// Two lists of hashes in order of recency, with a search by hash. Simulated tiers and ARC's ghosts
/// are made of them. 28 to 32 bytes per entry. Hashes have 32 bits here; two keys with the same 32
/// bits count as one.
///
/// Used by one thread at a time. Only construction throws.
class HashedLists {
 public:
  static constexpr std::size_t kNumLists = 2;
  static constexpr std::uint32_t kNone = 0xffffffff;

  struct Entry {
    std::uint32_t hash = 0;
    std::uint32_t colder = 0;
    std::uint32_t hotter = 0;
    std::uint32_t next = kNone;  ///< The next entry in its hash chain, or in the free list.
    std::uint32_t stamp = 0;     ///< For the owner of the lists.
    std::uint8_t heat = 0;       ///< For the owner of the lists.
    std::uint8_t list = 0;
  };
  static_assert(sizeof(Entry) == 24);

  explicit HashedLists(std::uint32_t max_entries);

  /// The entry of `hash`, or kNone.
  [[nodiscard]] std::uint32_t find(std::uint32_t hash) const;
  /// Inserts `hash`, which is absent; there is room. It becomes the hottest entry of `list`, or the
  /// next colder neighbour of `warmer`, an entry of that list.
  std::uint32_t insert(std::uint32_t hash, std::size_t list, std::uint32_t warmer = kNone);
  void make_hottest(std::uint32_t entry, std::size_t list);
  void erase(std::uint32_t entry);
  void clear();

  /// The coldest entry of a list that is not empty.
  [[nodiscard]] std::uint32_t coldest(std::size_t list) const {
    return entries_[max_entries_ + list].hotter;
  }
  /// The next hotter neighbour; kNone for the hottest entry of a list.
  [[nodiscard]] std::uint32_t hotter_than(std::uint32_t entry) const {
    const std::uint32_t hotter = entries_[entry].hotter;
    return hotter < max_entries_ ? hotter : kNone;
  }
  [[nodiscard]] std::uint32_t size(std::size_t list) const { return sizes_[list]; }
  [[nodiscard]] std::uint32_t size() const { return sizes_[0] + sizes_[1]; }
  [[nodiscard]] Entry& operator[](std::uint32_t entry) { return entries_[entry]; }
  [[nodiscard]] const Entry& operator[](std::uint32_t entry) const { return entries_[entry]; }

 private:
  [[nodiscard]] std::uint32_t chain(std::uint32_t hash) const {
    return (hash * 0x9e3779b1U) >> chain_shift_;  // Knuth's multiplicative hashing.
  }
  /// Makes the entry the next colder neighbour of `warmer`: an entry of the list, or its head.
  void link(std::uint32_t entry, std::size_t list, std::uint32_t warmer);
  [[nodiscard]] std::uint32_t head(std::size_t list) const {
    return max_entries_ + static_cast<std::uint32_t>(list);
  }
  void unlink(std::uint32_t entry);

  std::uint32_t max_entries_;
  /// The entries, then the heads of the two rings. `hotter` of a head is the coldest entry.
  std::vector<Entry, HugePageAllocator<Entry>> entries_;
  std::vector<std::uint32_t, HugePageAllocator<std::uint32_t>> chains_;
  std::uint32_t chain_shift_ = 0;
  std::uint32_t free_ = kNone;
  std::uint32_t num_used_ = 0;  ///< Entries with this index or a larger one were never used.
  std::array<std::uint32_t, kNumLists> sizes_{};
};

}  // namespace kvferry::cpu_tier
