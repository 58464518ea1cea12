// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/lmcache/object_store.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace kvferry::lmcache {

/// One call: what it finds stays until it ends.
class ObjectStore::Step {
 public:
  explicit Step(cpu_tier::Tier& tier) : tier_(tier) { tier_.hold_still(); }
  ~Step() { tier_.end_step(); }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

 private:
  cpu_tier::Tier& tier_;
};

/// The keys of one call, and which of them are still looked for.
struct ObjectStore::Search {
  Search(std::span<const std::string_view> all, DigestFunction digest) : keys(all) {
    digests.reserve(keys.size());
    for (const std::string_view key : keys) digests.push_back(digest(key));
    open.resize(keys.size());
    std::iota(open.begin(), open.end(), std::size_t{0});
  }

  /// Of those given, in their order, as a class knows them: one key is another one in each, so
  /// that what others hold is found in chunks that are divided alike.
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
  /// `done` are those of open, in order, that are looked for no more.
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

  // What find() found in a class, of those that are open; ascending.
  std::vector<std::size_t> readable;
  std::vector<SlotId> slots;  ///< Of the readable ones.
  std::vector<std::size_t> writable;
};

/// What reserve() was asked for.
struct ObjectStore::Batch {
  Search search;
  std::span<const std::uint64_t> value_bytes;
  std::vector<std::uint32_t> sizes;  ///< By number.
};

}  // namespace kvferry::lmcache
