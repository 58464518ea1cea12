// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/slot_set.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace kvferry::lmcache {

class ObjectStore;

/// Places of values in one known state, in the order of the keys they were asked for. What may be
/// done with them is in the type. Move-only; made by ObjectStore and given back to it: one that
/// dies with slots inside stops the process.
template <class Slots, class Byte>
class [[nodiscard]] ValueSet {
 public:
  ValueSet() = default;

  /// One per key. Null: there is nothing to be copied for that key.
  [[nodiscard]] std::span<Byte* const> places() const { return places_; }

 private:
  friend class ObjectStore;
  std::vector<Slots> parts_;  ///< By slab class.
  std::vector<Byte*> places_;
};

/// Reserved; the caller writes into them. Null: the store holds that key with a value of that size,
/// or another caller is writing it.
using WritableValues = ValueSet<cpu_tier::WritableSlots, std::byte>;
/// Leased: whole, and neither evicted nor rewritten while the lease lasts. Null: a miss.
using ReadableValues = ValueSet<cpu_tier::Lease, const std::byte>;

}  // namespace kvferry::lmcache
