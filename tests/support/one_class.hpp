// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/retirable_chunks.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"
#include "kvferry/cpu_tier/slots/tier_promises.hpp"
#include "kvferry/cpu_tier/slots/tier_withdrawals.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {

/// A tier as seen from one of its slab classes: its calls for that class. A view.
class OneClass {
 public:
  OneClass(Tier& all, SlabClassId of) : all_(&all), of_(of) {}

  [[nodiscard]] Tier& all() const { return *all_; }
  void offer(std::span<const BlockKey> keys, std::span<OfferAnswer> answers) const {
    all_->offer(of_, keys, answers);
  }
  void await(std::span<const BlockKey> keys) const { all_->await(of_, keys); }
  void await(const PrefixHit& hit) const { all_->await(hit); }
  void end_await(std::span<const BlockKey> keys) const { all_->end_await(of_, keys); }
  void promise(std::span<const BlockKey> keys) const { TierPromises(*all_).promise(of_, keys); }
  void end_promise(std::span<const BlockKey> keys) const { TierPromises(*all_).end(of_, keys); }
  std::uint32_t leave_early(std::span<const BlockKey> keys) const {
    return TierPromises(*all_).leave_early(of_, keys);
  }
  [[nodiscard]] Result<Reservation, NotReserved> reserve(std::span<const BlockKey> keys) const {
    return all_->reserve(of_, keys);
  }
  void commit(WritableSlots&& slots,
              const std::optional<BlockKey>& predecessor = std::nullopt) const {
    all_->commit(std::move(slots), predecessor);
  }
  [[nodiscard]] AbortedSlots abort(WritableSlots&& slots) const {
    return all_->abort(std::move(slots));
  }
  [[nodiscard]] QuarantinedSlots quarantine(AbortedSlots&& slots) const {
    return all_->quarantine(std::move(slots));
  }
  template <class Slots>
  void release(Slots&& slots) const {
    all_->release(std::forward<Slots>(slots));
  }
  template <class Slots>
  void leave_behind(Slots&& slots) const {
    all_->leave_behind(std::forward<Slots>(slots));
  }
  [[nodiscard]] PrefixHit lookup_prefix(std::span<const BlockKey> keys,
                                        PrefixHit known = {}) const {
    return all_->lookup_prefix(of_, keys, std::move(known));
  }
  void lookup(std::span<const BlockKey> keys, std::span<KeyState> states) const {
    all_->lookup(of_, keys, states);
  }
  [[nodiscard]] Result<Lease, NotReadable> lease(std::span<const BlockKey> keys) const {
    return all_->lease(of_, keys);
  }
  [[nodiscard]] Result<Lease, NotReadable> lease(const PrefixHit& hit, std::size_t count) const {
    return all_->lease(hit, count);
  }
  void touch(std::span<const BlockKey> keys) const { all_->touch(of_, keys); }
  void forget(const Lease& lease) const { all_->forget(lease); }
  [[nodiscard]] std::vector<WithdrawnSlot> withdraw(const Lease& lease,
                                                    std::span<const SlotId> slots) const {
    return TierWithdrawals(*all_).withdraw(lease, slots);
  }
  void forget_all() const { all_->forget_all(); }
  [[nodiscard]] BlockKey key(SlotId slot) const { return all_->key(of_, slot); }
  [[nodiscard]] std::uint64_t eviction_epoch() const { return all_->eviction_epoch(); }
  [[nodiscard]] std::vector<KeyEvent> take_key_events() const { return all_->take_key_events(); }
  [[nodiscard]] TierSnapshot snapshot() const {
    return all_->slab_snapshot().classes[of_.value()].tier;
  }
  [[nodiscard]] const char* rule_name() const { return all_->rule_name(of_); }
  void check_invariants() const { all_->check_invariants(); }

 private:
  Tier* all_;
  SlabClassId of_;
};

/// A tier of one class, each of whose chunks is one slot: what a model with blocks of one size has.
class PlainTier : private Tier, public OneClass {
 public:
  explicit PlainTier(std::uint32_t max_slots, const TierOptions& options = {})
      : Tier(max_slots, std::array{1U}, options), OneClass(*this, SlabClassId(0)) {}

  using OneClass::abort, OneClass::await, OneClass::check_invariants, OneClass::commit,
      OneClass::end_await, OneClass::end_promise, OneClass::eviction_epoch, OneClass::forget,
      OneClass::forget_all, OneClass::key, OneClass::lease, OneClass::leave_behind,
      OneClass::leave_early, OneClass::lookup, OneClass::lookup_prefix, OneClass::offer,
      OneClass::promise, OneClass::quarantine, OneClass::release, OneClass::reserve,
      OneClass::rule_name, OneClass::snapshot, OneClass::take_key_events, OneClass::touch,
      OneClass::withdraw, Tier::grow_to;

  [[nodiscard]] RetirableChunks chunks() { return RetirableChunks(*this); }
};

}  // namespace kvferry::cpu_tier
