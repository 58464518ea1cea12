// SPDX-License-Identifier: Apache-2.0
// Calls about one class, each one step under the tier's lock. Arrays are freed after it.
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"

#include "slab_class.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvferry::cpu_tier {

Reservation::Reservation(Reservation&& other) noexcept
    : tier_(other.tier_), slots_(std::move(other.slots_)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    give_back();
    tier_ = other.tier_;
    slots_ = std::move(other.slots_);
  }
  return *this;
}

Reservation::~Reservation() { give_back(); }

// Without slots it must not touch the tier: it may have outlived the tier, or be destroyed under
// its lock.
void Reservation::give_back() {
  if (!slots_.empty()) tier_->give_back(std::move(slots_));
}

WritableSlots Reservation::hand_over() && { return std::move(slots_); }

Tier::Tier(std::uint32_t max_chunks, std::span<const std::uint32_t> slots_per_chunk,
           const TierOptions& options, std::unique_ptr<Peers> peers)
    : max_chunks_(max_chunks),
      options_(options),
      peers_(std::move(peers)),
      first_gets_all_(slots_per_chunk.size() == 1) {
  MutexLock lock(mutex_);
  for (const std::uint32_t count : slots_per_chunk) make_class(count);
}

Tier::~Tier() = default;

SlabClassId Tier::add_class(std::uint32_t slots_per_chunk) {
  MutexLock lock(mutex_);
  return make_class(slots_per_chunk);
}

SlabClassId Tier::make_class(std::uint32_t slots_per_chunk) {
  if (num_classes_ == kMaxClasses) {
    throw ConfigError("more than " + std::to_string(kMaxClasses) +
                      " sizes of slots in one CPU tier: use fewer sizes of objects");
  }
  const std::uint64_t num_slots = std::uint64_t{max_chunks_} * slots_per_chunk;
  if (slots_per_chunk == 0 || num_slots > BlockIndex::kMaxSlots) {
    throw ConfigError("a CPU tier of " + std::to_string(max_chunks_) + " chunks with " +
                      std::to_string(slots_per_chunk) +
                      " slots each; allowed: from 1 slot per chunk up to " +
                      std::to_string(BlockIndex::kMaxSlots) + " slots in all: use larger objects");
  }
  const auto has_as_many = [slots_per_chunk](const auto& other) {
    return other->slots_per_chunk == slots_per_chunk;
  };
  const auto num_alike = static_cast<std::uint32_t>(
      std::count_if(classes_.begin(), classes_.begin() + num_classes_, has_as_many));
  classes_[num_classes_] = std::make_unique<SlabClass>(
      max_chunks_, ChunkShape{slots_per_chunk, num_alike}, options_, *peers_);
  return SlabClassId(num_classes_++);
}

std::uint32_t Tier::num_classes() const {
  MutexLock lock(mutex_);
  return num_classes_;
}

Tier::SlabClass& Tier::at(SlabClassId of) const {
  KVFERRY_CHECK(of.value() < num_classes_,
                "slab class " + std::to_string(of.value()) + " of " + std::to_string(num_classes_));
  return *classes_[of.value()];
}

void Tier::narrow_name_space(std::uint64_t by) {
  if (by == 0) return;
  MutexLock lock(mutex_);
  peers_->narrow_name_space(by);
}

void Tier::leave_name_space() {
  MutexLock lock(mutex_);
  peers_->leave_name_space();
}

void Tier::offer(SlabClassId of, std::span<const BlockKey> keys, std::span<OfferAnswer> answers) {
  KVFERRY_CHECK(keys.size() == answers.size(), "offer() with spans of different lengths");
  MutexLock lock(mutex_);
  SlabClass& mine = at(of);
  // Chunks without an owner are as good as free slots of this class. Chunks also move from class to
  // class and from engine to engine, so all chunks in use may become ours.
  const std::size_t num_to_come =
      std::size_t{peers_->num_obtainable_chunks()} * mine.slots_per_chunk;
  const std::size_t num_in_use = class_of_chunk_.size() - num_retired_;
  mine.slots.offer(keys, answers, num_to_come, num_in_use * mine.slots_per_chunk);
}

void Tier::await(SlabClassId of, std::span<const BlockKey> keys) {
  MutexLock lock(mutex_);
  at(of).slots.await(keys);
}

void Tier::await(const PrefixHit& hit) {
  MutexLock lock(mutex_);
  at(hit.slab_class).slots.await(hit);
}

void Tier::end_await(SlabClassId of, std::span<const BlockKey> keys) {
  MutexLock lock(mutex_);
  at(of).slots.end_await(keys);
}

Result<Reservation, NotReserved> Tier::reserve(SlabClassId of, std::span<const BlockKey> keys) {
  std::vector<SlotId> slots(keys.size());
  MutexLock lock(mutex_);
  SlabClass& mine = at(of);
  if (keys.size() <= std::uint64_t{mine.slots_per_chunk} * class_of_chunk_.size()) {
    make_room(of.value(), static_cast<std::uint32_t>(keys.size()));
  }
  if (const std::optional<NotReserved> refused = mine.slots.reserve(keys, slots)) return *refused;
  count_turnover(of.value(), keys.size());
  return Reservation(this, WritableSlots(std::move(slots), of));
}

void Tier::give_back(WritableSlots&& slots) {
  const SlabClassId of = slots.slab_class();
  const std::vector<SlotId> given = slots.take();
  MutexLock lock(mutex_);
  at(of).slots.give_back(given);
}

void Tier::commit(WritableSlots&& slots, const std::optional<BlockKey>& predecessor) {
  const SlabClassId of = slots.slab_class();
  const std::vector<SlotId> stored = slots.take();
  MutexLock lock(mutex_);
  at(of).slots.commit(stored, predecessor);
}

AbortedSlots Tier::abort(WritableSlots&& slots) {
  MutexLock lock(mutex_);
  at(slots.slab_class()).slots.abort(slots.slots());
  return AbortedSlots(slots.take(), slots.slab_class());
}

void Tier::release(AbortedSlots&& slots) {
  const SlabClassId of = slots.slab_class();
  const std::vector<SlotId> released = slots.take();
  MutexLock lock(mutex_);
  at(of).slots.release(released, SlotState::kAborted);
}

QuarantinedSlots Tier::quarantine(AbortedSlots&& slots) {
  MutexLock lock(mutex_);
  at(slots.slab_class()).slots.quarantine(slots.slots());
  return QuarantinedSlots(slots.take(), slots.slab_class());
}

void Tier::release(QuarantinedSlots&& slots) {
  const SlabClassId of = slots.slab_class();
  const std::vector<SlotId> released = slots.take();
  MutexLock lock(mutex_);
  at(of).slots.release(released, SlotState::kQuarantined);
}

PrefixHit Tier::lookup_prefix(SlabClassId of, std::span<const BlockKey> keys,
                              PrefixHit known) const {
  MutexLock lock(mutex_);
  PrefixHit hit = at(of).slots.lookup_prefix(keys, std::move(known));
  hit.slab_class = of;
  return hit;
}

void Tier::lookup(SlabClassId of, std::span<const BlockKey> keys,
                  std::span<KeyState> states) const {
  KVFERRY_CHECK(keys.size() == states.size(), "lookup() with spans of different lengths");
  MutexLock lock(mutex_);
  at(of).slots.lookup(keys, states);
}

Result<Lease, NotReadable> Tier::lease(SlabClassId of, std::span<const BlockKey> keys) {
  std::vector<SlotId> slots(keys.size());
  MutexLock lock(mutex_);
  if (const auto refused = at(of).slots.lease(keys, slots)) return *refused;
  return Lease(std::move(slots), of);
}

Result<Lease, NotReadable> Tier::lease(const PrefixHit& hit, std::size_t count) {
  KVFERRY_CHECK(count <= hit.size(), "a lease extends past the end of its hit");
  std::vector<SlotId> slots(hit.slots.begin(),
                            hit.slots.begin() + static_cast<std::ptrdiff_t>(count));
  MutexLock lock(mutex_);
  if (const auto refused = at(hit.slab_class).slots.lease(hit.eviction_epoch, slots)) {
    return *refused;
  }
  return Lease(std::move(slots), hit.slab_class);
}

void Tier::release(Lease&& lease) {
  const SlabClassId of = lease.slab_class();
  const std::vector<SlotId> ended = lease.take();
  MutexLock lock(mutex_);
  at(of).slots.end_leases(ended);
}

void Tier::touch(SlabClassId of, std::span<const BlockKey> keys) {
  MutexLock lock(mutex_);
  at(of).slots.touch(keys);
}

void Tier::forget(const Lease& lease) {
  MutexLock lock(mutex_);
  at(lease.slab_class()).slots.forget(lease.slots(), MoveKind::kForgotten);
}

void Tier::forget_all(std::optional<WeightsId> of) {
  MutexLock lock(mutex_);
  for (std::uint32_t i = 0; i < num_classes_; ++i) classes_[i]->slots.forget_all(of);
}

void Tier::leave_behind(AbortedSlots&& slots) { leave_behind(quarantine(std::move(slots))); }

void Tier::leave_behind(QuarantinedSlots&& slots) {
  const SlabClassId of = slots.slab_class();
  const std::vector<SlotId> left = slots.take();
  MutexLock lock(mutex_);
  if (peers_->outlives_tier()) {
    at(of).slots.leave_behind(left, SlotState::kQuarantined);
  } else {
    at(of).slots.release(left, SlotState::kQuarantined);
  }
}

void Tier::leave_behind(Lease&& lease) {
  const SlabClassId of = lease.slab_class();
  const std::vector<SlotId> left = lease.take();
  MutexLock lock(mutex_);
  if (peers_->outlives_tier()) {
    at(of).slots.leave_behind(left, SlotState::kLeased);
  } else {
    at(of).slots.end_leases(left);
  }
}

BlockKey Tier::key(SlabClassId of, SlotId slot) const {
  MutexLock lock(mutex_);
  return at(of).slots.key(slot);
}

std::uint64_t Tier::eviction_epoch() const {
  MutexLock lock(mutex_);
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < num_classes_; ++i) sum += classes_[i]->slots.eviction_epoch();
  return sum;
}

std::vector<KeyEvent> Tier::take_key_events(WeightsId of) {
  MutexLock lock(mutex_);
  std::vector<KeyEvent> events;
  for (std::uint32_t i = 0; i < num_classes_; ++i) {
    std::vector<KeyEvent> more = classes_[i]->slots.take_key_events(of);
    if (events.empty()) {
      events = std::move(more);
    } else {
      events.insert(events.end(), more.begin(), more.end());
    }
  }
  return events;
}

const char* Tier::rule_name(SlabClassId of) const {
  MutexLock lock(mutex_);
  return at(of).slots.rule_name();
}

}  // namespace kvferry::cpu_tier
