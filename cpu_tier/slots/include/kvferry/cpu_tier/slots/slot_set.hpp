// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/check.hpp"
#include "kvferry/base/ids.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {

class Tier;

/// Slots of one slab class in one known state, in the order of the keys for which they were taken.
/// The type says what can be done with the slots: a call that does not fit the state does not
/// compile. Move-only. Only Tier makes sets, and only Tier takes them back. Destroying a set with
/// slots inside is a broken invariant, because the slots would never be free again.
template <class State>
class [[nodiscard]] SlotSet {
 public:
  SlotSet() = default;
  SlotSet(SlotSet&& other) noexcept
      : slots_(std::exchange(other.slots_, {})), slab_class_(other.slab_class_) {}
  SlotSet& operator=(SlotSet&& other) noexcept {
    KVFERRY_CHECK(slots_.empty(), "a non-empty SlotSet was overwritten");
    slots_ = std::exchange(other.slots_, {});
    slab_class_ = other.slab_class_;
    return *this;
  }
  SlotSet(const SlotSet&) = delete;
  SlotSet& operator=(const SlotSet&) = delete;
  ~SlotSet() {
    KVFERRY_CHECK(slots_.empty(),
                  std::to_string(slots_.size()) + " slots were dropped, not given back");
  }

  [[nodiscard]] std::span<const SlotId> slots() const { return slots_; }
  [[nodiscard]] SlabClassId slab_class() const { return slab_class_; }
  [[nodiscard]] std::size_t size() const { return slots_.size(); }
  [[nodiscard]] bool empty() const { return slots_.empty(); }

  /// Keeps the first `num_kept` (at most size()) and returns the others.
  [[nodiscard]] SlotSet split_off(std::size_t num_kept) {
    KVFERRY_CHECK(num_kept <= slots_.size(), "split_off beyond the end");
    SlotSet tail({}, slab_class_);
    tail.slots_.assign(slots_.begin() + static_cast<std::ptrdiff_t>(num_kept), slots_.end());
    slots_.resize(num_kept);
    return tail;
  }
  /// Appends the slots of `other`, which are of the same class.
  void merge(SlotSet&& other) {
    KVFERRY_CHECK(slots_.empty() || other.slots_.empty() || slab_class_ == other.slab_class_,
                  "slots of different slab classes were merged");
    if (slots_.empty()) slab_class_ = other.slab_class_;
    slots_.insert(slots_.end(), other.slots_.begin(), other.slots_.end());
    other.slots_.clear();
  }

 private:
  friend class Tier;
  SlotSet(std::vector<SlotId> slots, SlabClassId slab_class)
      : slots_(std::move(slots)), slab_class_(slab_class) {}
  /// The slots, leaving the set empty.
  [[nodiscard]] std::vector<SlotId> take() { return std::exchange(slots_, {}); }

  std::vector<SlotId> slots_;
  SlabClassId slab_class_ = SlabClassId(0);
};

/// Reserved for one store; a device can write into them.
using WritableSlots = SlotSet<struct WritableState>;
/// Their keys are forgotten, but a device could still write into them.
using AbortedSlots = SlotSet<struct AbortedState>;
/// A device could write into them at any time, until it is proven that it cannot.
using QuarantinedSlots = SlotSet<struct QuarantinedState>;
/// One lease on each of several readable slots. While it lasts, the slots are neither evicted nor
/// rewritten.
using Lease = SlotSet<struct LeasedState>;

}  // namespace kvferry::cpu_tier
