// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/lmcache/object_store.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace kvferry::lmcache {

/// One call. Everything that the call finds stays in the tier until the call ends.
class ObjectStore::Step {
 public:
  explicit Step(cpu_tier::Tier& tier) : tier_(tier) { tier_.hold_still(); }
  ~Step() { tier_.end_step(); }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

 private:
  cpu_tier::Tier& tier_;
};

/// The keys of one call, and which of them are still searched.
struct ObjectStore::Search {
  Search(std::span<const std::string_view> all, DigestFunction digest) : keys(all) {
    digests.reserve(keys.size());
    for (const std::string_view key : keys) digests.push_back(digest(key));
    open.resize(keys.size());
    std::iota(open.begin(), open.end(), std::size_t{0});
  }

  /// The digests of the given keys, in their order, for one class. A key has a different digest in
  /// each class, so a value that another store holds is found only in chunks with that division.
  [[nodiscard]] std::vector<Digest> digests_in(const SizeClass& of,
                                               std::span<const std::size_t> which) const {
    std::vector<Digest> some;
    some.reserve(which.size());
    for (const std::size_t i : which) {
      some.push_back(digests[i]);
      some.back().group = of.slots.num_slots;
    }
    return some;
  }
  /// What a value with that size is, as a number: its tag depends on it (slot_record.hpp).
  [[nodiscard]] std::uint64_t identity(std::size_t key, std::uint64_t value_bytes) const {
    return mixed_bits(digests[key].mixed() ^ mixed_bits(value_bytes));
  }
  /// Ends the search for the keys `done`, an ascending part of `open`.
  void close(std::span<const std::size_t> done) {
    if (done.empty()) return;
    std::vector<std::size_t> left;
    left.reserve(open.size() - done.size());
    std::set_difference(open.begin(), open.end(), done.begin(), done.end(),
                        std::back_inserter(left));
    open = std::move(left);
  }

  const std::span<const std::string_view> keys;
  std::vector<Digest> digests;
  std::vector<std::size_t> open;  ///< Ascending.

  // Results of find() for a class: which of the open keys are readable or being written; ascending.
  std::vector<std::size_t> readable;
  std::vector<SlotId> slots;  ///< The slots of the readable keys.
  std::vector<std::size_t> writable;
};

template <class Values>
void ObjectStore::enter(Values& values, std::size_t number, const SizeClass& of, SlotId slot,
                        std::uint64_t identity) const {
  values.places_[number] = place(of, slot);
  values.described_[number] = {&record(of, slot), identity, slot, values.parts_.size() - 1};
}

/// The arguments of reserve(), and its search.
struct ObjectStore::Batch {
  Search search;
  std::span<const std::uint64_t> value_bytes;
  std::vector<std::uint32_t> sizes;  ///< The number of the slot size of each key.
};

}  // namespace kvferry::lmcache
