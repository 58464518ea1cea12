// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/slot_set.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace kvferry::lmcache {

class ObjectStore;

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
  std::vector<Slots> parts_;  ///< By slab class.
  std::vector<Byte*> places_;
};

/// Reserved places, into which the caller writes. Null: the store already holds that key with a
/// value of that size, or another caller is writing it.
using WritableValues = ValueSet<cpu_tier::WritableSlots, std::byte>;
/// Leased values: complete, and neither evicted nor rewritten while the lease lasts. Null: a miss.
using ReadableValues = ValueSet<cpu_tier::Lease, const std::byte>;

}  // namespace kvferry::lmcache
