// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/slot_set.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::lmcache {

class ObjectStore;
struct SlotRecord;

/// Places of values in one known state, in the order of the requested keys. The type says what can
/// be done with them. Move-only. ObjectStore makes the sets and takes them back. Destroying a set
/// with slots inside stops the process.
template <class Slots, class Byte>
class [[nodiscard]] ValueSet {
 public:
  ValueSet() = default;

  /// One place for each key. Null: there is nothing to copy for that key.
  [[nodiscard]] std::span<Byte* const> places() const { return places_; }

 private:
  friend class ObjectStore;
  /// By what the value of a place is recognised, and where that is written (slot_record.hpp).
  struct Description {
    SlotRecord* record = nullptr;
    std::uint64_t identity = 0;
    SlotId slot;
    std::size_t part = 0;  ///< The slot is one of parts_[part].
  };

  explicit ValueSet(std::size_t num_keys) : places_(num_keys), described_(num_keys) {}

  std::vector<Slots> parts_;  ///< By slab class.
  std::vector<Byte*> places_;
  std::vector<Description> described_;  ///< Of the places that are not null.
};

/// Reserved places, into which the caller writes. Null: the store already holds that key with a
/// value of that size, or another caller is writing it.
using WritableValues = ValueSet<cpu_tier::WritableSlots, std::byte>;
/// Leased values: complete, and neither evicted nor rewritten while the lease lasts. Null: a miss.
using ReadableValues = ValueSet<cpu_tier::Lease, const std::byte>;

}  // namespace kvferry::lmcache
