// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_directory.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/base/test_hooks.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

/// Chunks that take_chunk() looks at, which takes some microseconds.
constexpr std::uint32_t kMostLooked = 256;
/// Chunks without an owner whose slots look_around() looks at, which takes some microseconds each.
/// If there are more, hardly all of them are in use.
constexpr std::uint32_t kMostScanned = 16;

}  // namespace

TierDirectory::TierDirectory(std::span<std::byte> metadata, const TierPlaces& places,
                             const TierShape& shape, LockFile file, const Identity& identity)
    : file_(std::move(file)),
      records_(metadata, places, shape, identity.name_space),
      leases_(records_),
      grace_(identity.grace),
      clock_(identity.clock),
      seen_quarantines_(shape.num_chunks),
      seen_withdrawals_(shape.num_chunks) {
  mend_instances();
  take_name(identity);
  if (claim_record(identity)) {
    mend_chunks();
    return;
  }
  std::string names;
  for (const InstanceRecord& record : records_.instances()) names += ' ' + load_name(record);
  throw ResourceError(
      "the shared tier " + file_.path().string() + " has " + std::to_string(kMaxInstances) +
      " engines already, which is the limit:" + names + "; name another path for some of them");
}

bool TierDirectory::claim_record(const Identity& identity) {
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    InstanceRecord& record = records_.instances()[i];
    std::uint64_t free = 0;
    if (!record.lock.compare_exchange_strong(free, lock_base_of(identity.name),
                                             std::memory_order_acq_rel)) {
      continue;
    }
    KVFERRY_PAUSE_POINT("tier_directory.record_claimed");
    store_name(record, identity.name);
    record.name_space.store(identity.name_space, std::memory_order_relaxed);
    record.weight.store(identity.weight, std::memory_order_relaxed);
    record.most_chunks.store(identity.most_chunks, std::memory_order_relaxed);
    record.copies_never_end.store(identity.grace >= Identity::kForEver ? 1 : 0,
                                  std::memory_order_relaxed);
    record.num_chunks.store(0, std::memory_order_relaxed);
    record.num_wanted_chunks.store(0, std::memory_order_relaxed);
    // num_told continues from its value: a process that has seen a number must never see it again.
    record.coldest_seconds.store(0, std::memory_order_relaxed);
    records_.set_self(InstanceId(i));
    // Instances begin at different chunks, so that they seldom want the same one.
    next_chunk_ =
        static_cast<std::uint32_t>(std::uint64_t{records_.shape().num_chunks} * i / kMaxInstances);
    return true;
  }
  return false;
}

// ---- chunks ----

std::optional<ChunkId> TierDirectory::take_chunk() {
  const std::uint32_t end = records_.reach();
  const std::uint32_t most = records_.own_record().most_chunks.load(std::memory_order_relaxed);
  if (end == 0 || (most != 0 && num_own_chunks() >= most)) return std::nullopt;
  const auto take = [this](ChunkId chunk) {
    std::uint64_t nobody = 0;
    if (!records_.chunk(chunk).owner.compare_exchange_strong(nobody, records_.own().bits,
                                                             std::memory_order_acq_rel)) {
      return false;
    }
    records_.own_record().num_chunks.fetch_add(1, std::memory_order_relaxed);
    note_quarantine(chunk);
    return true;
  };
  std::optional<ChunkId> left_by_somebody;
  const std::uint32_t num_looked = std::min(kMostLooked, end);
  for (std::uint32_t i = 0; i < num_looked; ++i) {
    const ChunkId chunk(next_chunk_ % end);
    next_chunk_ = chunk.value() + 1;
    if (records_.chunk(chunk).owner.load(std::memory_order_relaxed) != 0) continue;
    if (records_.chunk(chunk).num_slots.load(std::memory_order_relaxed) != 0) {
      if (!left_by_somebody) left_by_somebody = chunk;
      continue;
    }
    if (take(chunk)) return chunk;
  }
  if (!left_by_somebody) return std::nullopt;
  // If it turns out to be of no use, the next call takes another one.
  next_chunk_ = left_by_somebody->value() + 1;
  return take(*left_by_somebody) ? left_by_somebody : std::nullopt;
}

void TierDirectory::divide(ChunkId chunk, const ChunkShape& shape) {
  KVFERRY_CHECK(owns(chunk) && shape.num_slots <= records_.shape().max_chunk_slots,
                "chunk " + std::to_string(chunk.value()) + " cannot be divided into " +
                    std::to_string(shape.num_slots) + " slots");
  mend_slots(chunk, records_.shape_of(chunk).num_slots, shape.num_slots);
  ChunkRecord& record = records_.chunk(chunk);
  record.num_slots.store(shape.num_slots, std::memory_order_relaxed);
  record.slab_class.store(shape.slab_class, std::memory_order_relaxed);
  record.name_space.store(records_.name_space(), std::memory_order_relaxed);
}

bool TierDirectory::give_up(ChunkId chunk) {
  KVFERRY_CHECK(owns(chunk),
                "chunk " + std::to_string(chunk.value()) + " belongs to another instance");
  ChunkRecord& record = records_.chunk(chunk);
  const std::uint32_t num_slots = records_.shape_of(chunk).num_slots;
  std::uint32_t num_free = 0;
  for (std::uint32_t i = 0; i < num_slots; ++i) {
    const SharedState state = slot({chunk, i}).load().state();
    if (state == SharedState::kFilling) return false;
    num_free += state == SharedState::kFree ? 1 : 0;
  }
  if (num_free == num_slots) record.num_slots.store(0, std::memory_order_relaxed);
  records_.own_record().num_chunks.fetch_sub(1, std::memory_order_relaxed);
  record.owner.store(0, std::memory_order_release);
  return true;
}

bool TierDirectory::clear(ChunkId chunk) {
  const std::uint32_t num_slots = records_.shape_of(chunk).num_slots;
  bool all = true;
  for (std::uint32_t i = 0; i < num_slots; ++i) {
    all = make_free({chunk, i}) && all;
  }
  return all;
}

std::uint32_t TierDirectory::look_around() {
  bool is_alone = true;
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    const bool is_free = records_.instances()[i].lock.load(std::memory_order_relaxed) == 0;
    is_alone = is_alone && (is_free || i == self().value());
  }
  std::uint32_t num_unowned = 0;
  std::uint32_t num_scanned = 0;
  for (ChunkId chunk; chunk.value() < records_.reach(); chunk = chunk.next()) {
    if (records_.chunk(chunk).owner.load(std::memory_order_relaxed) != 0) continue;
    note_quarantine(chunk);
    const bool is_empty = records_.chunk(chunk).num_slots.load(std::memory_order_relaxed) == 0;
    is_alone = is_alone && is_empty;
    if (!is_empty && num_scanned < kMostScanned) {
      ++num_scanned;
      if (is_in_use(chunk)) continue;
    }
    ++num_unowned;
  }
  leases_.set_alone(is_alone);
  return num_unowned;
}

bool TierDirectory::is_in_use(ChunkId chunk) const {
  const std::uint32_t num_slots = records_.shape_of(chunk).num_slots;
  for (std::uint32_t i = 0; i < num_slots; ++i) {
    const SlotWord word = slot({chunk, i}).load();
    const bool can_be_cleared = word.can_be_read() && word.lessees() == 0;
    if (word.state() != SharedState::kFree && !can_be_cleared) return true;
  }
  return false;
}

// ---- slots ----

bool TierDirectory::begin_fill(SlotPlace place) {
  if (!slot(place).begin_fill()) return false;
  KVFERRY_PAUSE_POINT("tier_directory.filling");
  return true;
}

bool TierDirectory::refill(SlotPlace place) {
  if (!slot(place).refill()) return false;
  KVFERRY_PAUSE_POINT("tier_directory.filling");
  return true;
}

TierDirectory::HintChange TierDirectory::prepare_publish(SlotPlace place,
                                                         const BlockKey& key) const {
  HintChange change{std::nullopt, records_.hash_of(key)};
  records_.hints().prefetch_to_change(change.now);
  if (const auto before = records_.slot_key(place).load(records_.number_of(place))) {
    change.before = records_.hash_of(*before);
    records_.hints().prefetch_to_change(*change.before);
  }
  return change;
}

void TierDirectory::publish(SlotPlace place, const BlockKey& key, const HintChange& change) {
  const auto number = static_cast<std::uint32_t>(records_.number_of(place));
  // Until now no lookup was led there in vain, because hints to slots that are not readable are
  // ignored.
  if (change.before) records_.hints().remove(*change.before, number);
  records_.slot_key(place).store(
      number, {key, records_.name_space(), records_.stamp_of(slot(place).load(), place.chunk)});
  KVFERRY_PAUSE_POINT("tier_directory.filling_with_key");
  const bool published = slot(place).publish();
  KVFERRY_CHECK(published, "slot " + std::to_string(records_.number_of(place)) +
                               " is published, but was not filled: " +
                               std::to_string(slot(place).load().bits));
  KVFERRY_PAUSE_POINT("tier_directory.published_without_hint");
  records_.hints().insert(change.now, number,
                          [this](std::uint32_t other) { return records_.is_stale_hint(other); });
}

bool TierDirectory::evict(SlotPlace place) { return slot(place).evict(); }

void TierDirectory::withdraw(SlotPlace place) {
  slot(place).withdraw();
  if (owns(place.chunk)) return;
  // If this process dies here, the owner is not told. But it cannot evict the slot either, and
  // learns of it when it loads the slot.
  KVFERRY_PAUSE_POINT("tier_directory.withdrawn_untold");
  records_.chunk(place.chunk).num_withdrawals.fetch_add(1, std::memory_order_acq_rel);
}

bool TierDirectory::take_withdrawals(ChunkId chunk) {
  const std::uint64_t now = records_.chunk(chunk).num_withdrawals.load(std::memory_order_acquire);
  return std::exchange(seen_withdrawals_[chunk.value()], now) != now;
}

void TierDirectory::leave_name_space() {
  narrow_name_space(lock_base_of(load_name(records_.own_record())));
}

void TierDirectory::narrow_name_space(std::uint64_t by) {
  records_.set_name_space(mixed_bits(by ^ mixed_bits(records_.name_space())));
  // Nothing in them is readable, and what will be is of the new name space.
  for (ChunkId chunk; chunk.value() < records_.reach(); chunk = chunk.next()) {
    if (!owns(chunk)) continue;
    records_.chunk(chunk).name_space.store(records_.name_space(), std::memory_order_relaxed);
  }
}

}  // namespace kvferry::cpu_tier
