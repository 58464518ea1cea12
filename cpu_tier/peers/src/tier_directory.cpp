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

template <class T>
std::span<T> part(std::span<std::byte> metadata, std::uint64_t begin, std::uint64_t count) {
  KVFERRY_CHECK(begin + count * sizeof(T) <= metadata.size(), "metadata end too early");
  return {reinterpret_cast<T*>(metadata.data() + begin), count};
}

/// Chunks that take_chunk() looks at: some microseconds.
constexpr std::uint32_t kMostLooked = 256;

}  // namespace

TierDirectory::TierDirectory(std::span<std::byte> metadata, const TierPlaces& places,
                             const TierShape& shape, LockFile file, const Identity& identity)
    : shape_(shape),
      chunk_slots_(shape.max_chunk_slots),
      file_(std::move(file)),
      instances_(part<InstanceRecord>(metadata, places.instances, kMaxInstances)),
      chunks_(part<ChunkRecord>(metadata, places.chunks, shape.num_chunks)),
      slots_(part<SlotLine>(metadata, places.slots,
                            std::uint64_t{shape.num_chunks} * shape.max_chunk_slots)),
      hints_(part<std::atomic<std::uint64_t>>(metadata, places.hints, places.num_hints)),
      name_space_(identity.name_space),
      num_reached_(shape.num_chunks),
      grace_(identity.grace),
      clock_(identity.clock),
      seen_quarantines_(shape.num_chunks) {
  mend_instances();
  take_name(identity);
  if (claim_record(identity)) {
    mend_chunks();
    return;
  }
  std::string names;
  for (const InstanceRecord& record : instances_) names += ' ' + load_name(record);
  throw ResourceError("the shared tier " + file_.path().string() + " has " +
                      std::to_string(kMaxInstances) + " engines already, as many as there can be:" +
                      names + "; name another path for some of them");
}

bool TierDirectory::claim_record(const Identity& identity) {
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    InstanceRecord& record = instances_[i];
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
    record.num_chunks.store(0, std::memory_order_relaxed);
    record.num_wanted_chunks.store(0, std::memory_order_relaxed);
    // num_told goes on from where it is: who has seen a number must never meet it again.
    record.coldest_seconds.store(0, std::memory_order_relaxed);
    self_ = InstanceId(i);
    me_ = ChunkOwner::of(self_, record.epoch.load(std::memory_order_relaxed));
    // Instances begin at different chunks, so that they seldom want the same.
    next_chunk_ = static_cast<std::uint32_t>(std::uint64_t{shape_.num_chunks} * i / kMaxInstances);
    return true;
  }
  return false;
}

// ---- chunks ----

ChunkRecord& TierDirectory::record_of(ChunkId chunk) const { return chunks_[chunk.value()]; }

bool TierDirectory::owns(ChunkId chunk) const {
  return record_of(chunk).owner.load(std::memory_order_relaxed) == me_.bits;
}

ChunkShape TierDirectory::shape_of(ChunkId chunk) const {
  const ChunkRecord& record = record_of(chunk);
  // What another program wrote must not lead beyond the chunk.
  return {std::min(record.num_slots.load(std::memory_order_relaxed), shape_.max_chunk_slots),
          record.slab_class.load(std::memory_order_relaxed)};
}

bool TierDirectory::is_of_name_space(ChunkId chunk) const {
  return record_of(chunk).name_space.load(std::memory_order_relaxed) == name_space();
}

std::vector<ChunkShape> TierDirectory::shapes() const {
  std::vector<ChunkShape> shapes;
  for (ChunkId chunk; chunk.value() < reach(); chunk = chunk.next()) {
    const ChunkShape shape = shape_of(chunk);
    if (shape.num_slots == 0 || !is_of_name_space(chunk)) continue;
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  }
  return shapes;
}

std::uint64_t TierDirectory::num_readable_of_others() const {
  std::uint64_t num_readable = 0;
  for (ChunkId chunk; chunk.value() < reach(); chunk = chunk.next()) {
    if (owns(chunk) || !is_of_name_space(chunk)) continue;
    const std::uint32_t num_slots = shape_of(chunk).num_slots;
    for (std::uint32_t i = 0; i < num_slots; ++i) {
      num_readable += slot({chunk, i}).load().state() == SharedState::kReadable ? 1 : 0;
    }
  }
  return num_readable;
}

std::optional<ChunkId> TierDirectory::take_chunk() {
  const std::uint32_t end = reach();
  const std::uint32_t most = own_record().most_chunks.load(std::memory_order_relaxed);
  if (end == 0 || (most != 0 && num_own_chunks() >= most)) return std::nullopt;
  const auto take = [this](ChunkId chunk) {
    std::uint64_t nobody = 0;
    if (!record_of(chunk).owner.compare_exchange_strong(nobody, me_.bits,
                                                        std::memory_order_acq_rel)) {
      return false;
    }
    own_record().num_chunks.fetch_add(1, std::memory_order_relaxed);
    note_quarantine(chunk);
    return true;
  };
  std::optional<ChunkId> left_by_somebody;
  const std::uint32_t num_looked = std::min(kMostLooked, end);
  for (std::uint32_t i = 0; i < num_looked; ++i) {
    const ChunkId chunk(next_chunk_ % end);
    next_chunk_ = chunk.value() + 1;
    if (record_of(chunk).owner.load(std::memory_order_relaxed) != 0) continue;
    if (record_of(chunk).num_slots.load(std::memory_order_relaxed) != 0) {
      if (!left_by_somebody) left_by_somebody = chunk;
      continue;
    }
    if (take(chunk)) return chunk;
  }
  if (left_by_somebody && take(*left_by_somebody)) return left_by_somebody;
  return std::nullopt;
}

void TierDirectory::divide(ChunkId chunk, const ChunkShape& shape) {
  KVFERRY_CHECK(owns(chunk) && shape.num_slots <= shape_.max_chunk_slots,
                "chunk " + std::to_string(chunk.value()) + " cannot be divided into " +
                    std::to_string(shape.num_slots) + " slots");
  mend_slots(chunk, shape_of(chunk).num_slots, shape.num_slots);
  ChunkRecord& record = record_of(chunk);
  record.num_slots.store(shape.num_slots, std::memory_order_relaxed);
  record.slab_class.store(shape.slab_class, std::memory_order_relaxed);
  record.name_space.store(name_space(), std::memory_order_relaxed);
}

bool TierDirectory::give_up(ChunkId chunk) {
  KVFERRY_CHECK(owns(chunk), "chunk " + std::to_string(chunk.value()) + " is another's");
  ChunkRecord& record = record_of(chunk);
  const std::uint32_t num_slots = shape_of(chunk).num_slots;
  std::uint32_t num_free = 0;
  for (std::uint32_t i = 0; i < num_slots; ++i) {
    const SharedState state = slot({chunk, i}).load().state();
    if (state == SharedState::kFilling) return false;
    num_free += state == SharedState::kFree ? 1 : 0;
  }
  if (num_free == num_slots) record.num_slots.store(0, std::memory_order_relaxed);
  own_record().num_chunks.fetch_sub(1, std::memory_order_relaxed);
  record.owner.store(0, std::memory_order_release);
  return true;
}

bool TierDirectory::clear(ChunkId chunk) {
  const std::uint32_t num_slots = shape_of(chunk).num_slots;
  bool all = true;
  for (std::uint32_t i = 0; i < num_slots; ++i) {
    all = make_free({chunk, i}) && all;
  }
  return all;
}

std::uint32_t TierDirectory::look_around() {
  bool is_alone = true;
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    const bool is_free = instances_[i].lock.load(std::memory_order_relaxed) == 0;
    is_alone = is_alone && (is_free || i == self_.value());
  }
  std::uint32_t num_unowned = 0;
  for (ChunkId chunk; chunk.value() < reach(); chunk = chunk.next()) {
    if (record_of(chunk).owner.load(std::memory_order_relaxed) != 0) continue;
    ++num_unowned;
    note_quarantine(chunk);
    is_alone = is_alone && record_of(chunk).num_slots.load(std::memory_order_relaxed) == 0;
  }
  is_alone_.store(is_alone, std::memory_order_relaxed);
  return num_unowned;
}

// ---- slots ----

std::uint64_t TierDirectory::hash_of(const SlotKey::Content& content) {
  return mixed_bits(content.key.mixed() ^ content.name_space);
}

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
  HintChange change{std::nullopt, hash_of(key)};
  hints_.prefetch_to_change(change.now);
  if (const auto before = slot_key(place).load(number_of(place))) {
    change.before = hash_of(*before);
    hints_.prefetch_to_change(*change.before);
  }
  return change;
}

void TierDirectory::publish(SlotPlace place, const BlockKey& key, const HintChange& change) {
  const auto number = static_cast<std::uint32_t>(number_of(place));
  // Until now nobody was led there in vain: hints of what is not readable count for nothing.
  if (change.before) hints_.remove(*change.before, number);
  slot_key(place).store(number, {key, name_space(), stamp_of(slot(place).load(), place.chunk)});
  KVFERRY_PAUSE_POINT("tier_directory.filling_with_key");
  const bool published = slot(place).publish();
  KVFERRY_CHECK(published,
                "slot " + std::to_string(number_of(place)) +
                    " is published and was not filled: " + std::to_string(slot(place).load().bits));
  KVFERRY_PAUSE_POINT("tier_directory.published_without_hint");
  hints_.insert(change.now, number, [this](std::uint32_t other) {
    // Beyond the slots: what another program wrote.
    return other >= slots_.size() ||
           SlotWord{slots_[other].word.load(std::memory_order_relaxed)}.state() !=
               SharedState::kReadable;
  });
}

bool TierDirectory::evict(SlotPlace place) { return slot(place).evict(); }

std::optional<BlockKey> TierDirectory::key_of(SlotPlace place) const {
  return key_under(slot(place).load(), place);
}

std::uint32_t TierDirectory::stamp_of(SlotWord word, ChunkId chunk) const {
  const ChunkShape shape = shape_of(chunk);
  return slot_stamp(word, shape.num_slots, shape.slab_class);
}

std::optional<BlockKey> TierDirectory::key_under(SlotWord word, SlotPlace place) const {
  const auto content = slot_key(place).load(number_of(place));
  if (!content || content->name_space != name_space() ||
      content->stamp != stamp_of(word, place.chunk)) {
    return std::nullopt;
  }
  return content->key;
}

bool TierDirectory::holds(SlotPlace place, const BlockKey& key) const {
  if (place.chunk.value() >= reach() || place.index >= shape_of(place.chunk).num_slots) {
    return false;
  }
  const SlotWord word = slot(place).load();
  return word.state() == SharedState::kReadable && key_under(word, place) == key;
}

bool TierDirectory::has(const BlockKey& key) const {
  if (is_alone()) return false;
  const HintIndex::Candidates candidates = hints_.find(hash_of(key));
  return std::any_of(candidates.begin(), candidates.end(), [&](std::uint32_t number) {
    return holds(place_of(number), key) && !is_shunned(place_of(number));
  });
}

void TierDirectory::prefetch_slots(const BlockKey& key) const {
  for (const std::uint32_t number : hints_.find(hash_of(key))) {
    if (number < slots_.size()) __builtin_prefetch(&slots_[number], 1);
  }
}

std::optional<SlotPlace> TierDirectory::lease(const BlockKey& key) {
  if (is_alone()) return std::nullopt;
  for (const std::uint32_t number : hints_.find(hash_of(key))) {
    const SlotPlace place = place_of(number);
    if (!holds(place, key) || owns(place.chunk) || is_shunned(place)) continue;
    if (!slot(place).lease(self_)) continue;
    KVFERRY_PAUSE_POINT("tier_directory.leased_unchecked");
    // Until the lease it may have become another key's.
    if (holds(place, key)) {
      num_leases_.fetch_add(1, std::memory_order_relaxed);
      return place;
    }
    slot(place).end_lease(self_);
  }
  return std::nullopt;
}

void TierDirectory::end_lease(SlotPlace place) {
  const bool was_leased = slot(place).end_lease(self_);
  KVFERRY_CHECK(was_leased, "a slot is not leased: " + std::to_string(number_of(place)));
  num_leases_.fetch_sub(1, std::memory_order_relaxed);
}

void TierDirectory::leave_lease(SlotPlace place) {
  KVFERRY_CHECK(slot(place).load().is_leased_by(self_),
                "a slot is not leased: " + std::to_string(number_of(place)));
  num_leases_.fetch_sub(1, std::memory_order_relaxed);
}

void TierDirectory::shun(SlotPlace place) {
  const MutexLock lock(mutex_);
  shunned_.insert_or_assign(number_of(place), slot(place).load().generation());
  any_shunned_.store(true, std::memory_order_release);
}

bool TierDirectory::is_shunned(SlotPlace place) const {
  if (!any_shunned_.load(std::memory_order_acquire)) return false;
  const MutexLock lock(mutex_);
  const auto shunned = shunned_.find(number_of(place));
  if (shunned == shunned_.end()) return false;
  if (shunned->second == slot(place).load().generation()) return true;
  shunned_.erase(shunned);
  any_shunned_.store(!shunned_.empty(), std::memory_order_release);
  return false;
}

void TierDirectory::leave_name_space() { narrow_name_space(lock_base_of(load_name(own_record()))); }

void TierDirectory::narrow_name_space(std::uint64_t by) {
  name_space_.store(mixed_bits(by ^ mixed_bits(name_space())), std::memory_order_relaxed);
  own_record().name_space.store(name_space(), std::memory_order_relaxed);
}

}  // namespace kvferry::cpu_tier
