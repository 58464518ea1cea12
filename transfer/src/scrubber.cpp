// SPDX-License-Identifier: Apache-2.0
#include "scrubber.hpp"

#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/tag_sum.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

namespace kvferry::transfer {
namespace {

/// Slots that one call looks at if nothing is known about them, which takes some microseconds.
constexpr std::size_t kMostLookedAt = 4096;

}  // namespace

Scrubber::Scrubber(KnownBlocks& known, const std::vector<BlockClass>& classes,
                   std::uint64_t bytes_per_second)
    : known_(known),
      classes_([&classes] {
        std::vector<Class> copies;
        copies.reserve(classes.size());
        for (const BlockClass& of : classes) copies.push_back({of.slots, of.geometry.packed_bytes});
        return copies;
      }()),
      bytes_per_second_(bytes_per_second) {}

void Scrubber::scrub_one() {
  if (bytes_per_second_ == 0 || Clock::now() < next_) return;
  const std::optional<KnownBlocks::Place> place = known_.next(kMostLookedAt);
  const Class& of = classes_[place ? place->slab_class.value() : 0];
  const std::chrono::duration<double> pause(static_cast<double>(of.packed_bytes) /
                                            static_cast<double>(bytes_per_second_));
  const bool is_whole = !place || Scrubber::is_whole(of, *place);
  next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(pause);
  if (!place) return;
  if (!is_whole) known_.doubt(*place);
  MutexLock lock(mutex_);
  ++num_read_;
  if (!is_whole) findings_.push_back({place->slab_class, place->slot});
}

// The tag is read again after the bytes, because memory that is given back to the machine loses its
// tags before its pages.
bool Scrubber::is_whole(const Class& of, const KnownBlocks::Place& place) {
  const auto is_as_known = [&] {
    return of.slots.is_ready(place.slot) &&
           of.slots.tag(place.slot).load(std::memory_order_acquire) == place.known.tag;
  };
  if (!is_as_known()) return true;
  KVFERRY_PAUSE_POINT("scrubber.before_reading");
  const auto* const bytes = reinterpret_cast<const std::byte*>(of.slots.address(place.slot));
  const std::uint64_t sum = gpu::tag_sum(std::span(bytes, of.packed_bytes), 0);
  if (sum == place.known.own_sum || !is_as_known()) return true;
  // An operation that also writes: the reads above stay before it.
  const std::uint64_t tag = of.slots.tag(place.slot).fetch_or(0, std::memory_order_acq_rel);
  return tag != place.known.tag;
}

std::chrono::nanoseconds Scrubber::wait(std::chrono::nanoseconds idle) const {
  if (bytes_per_second_ == 0) return idle;
  return std::clamp<std::chrono::nanoseconds>(next_ - Clock::now(), std::chrono::nanoseconds(0),
                                              idle);
}

std::vector<DamagedSlot> Scrubber::take_findings() {
  MutexLock lock(mutex_);
  return std::exchange(findings_, {});
}

std::uint64_t Scrubber::num_read() const {
  MutexLock lock(mutex_);
  return num_read_;
}

}  // namespace kvferry::transfer
