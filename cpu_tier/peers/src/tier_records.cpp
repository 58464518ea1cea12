// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_records.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/base/prefetch.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {
namespace {

template <class T>
std::span<T> part(std::span<std::byte> metadata, std::uint64_t begin, std::uint64_t count) {
  KVFERRY_CHECK(begin + count * sizeof(T) <= metadata.size(), "metadata end too early");
  return {reinterpret_cast<T*>(metadata.data() + begin), count};
}

}  // namespace

TierRecords::TierRecords(std::span<std::byte> metadata, const TierPlaces& places,
                         const TierShape& shape, std::uint64_t name_space)
    : shape_(shape),
      chunk_slots_(shape.max_chunk_slots),
      instances_(part<InstanceRecord>(metadata, places.instances, kMaxInstances)),
      chunks_(part<ChunkRecord>(metadata, places.chunks, shape.num_chunks)),
      slots_(part<SlotLine>(metadata, places.slots,
                            std::uint64_t{shape.num_chunks} * shape.max_chunk_slots)),
      hints_(part<std::atomic<std::uint64_t>>(metadata, places.hints, places.num_hints)),
      name_space_(name_space),
      num_reached_(shape.num_chunks) {}

void TierRecords::set_self(InstanceId self) {
  self_ = self;
  own_ = ChunkOwner::of(self, own_record().epoch.load(std::memory_order_relaxed));
}

void TierRecords::set_name_space(std::uint64_t name_space) {
  name_space_.store(name_space, std::memory_order_relaxed);
  own_record().name_space.store(name_space, std::memory_order_relaxed);
}

ChunkShape TierRecords::shape_of(ChunkId which) const {
  const ChunkRecord& record = chunk(which);
  // Values that another program wrote must not lead past the end of the chunk.
  return {std::min(record.num_slots.load(std::memory_order_relaxed), shape_.max_chunk_slots),
          record.slab_class.load(std::memory_order_relaxed)};
}

std::vector<ChunkShape> TierRecords::shapes() const {
  std::vector<ChunkShape> shapes;
  for (ChunkId chunk; chunk.value() < reach(); chunk = chunk.next()) {
    const ChunkShape shape = shape_of(chunk);
    if (shape.num_slots == 0 || !is_of_name_space(chunk)) continue;
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  }
  return shapes;
}

std::uint64_t TierRecords::num_readable_of_others() const {
  std::uint64_t num_readable = 0;
  for (ChunkId chunk; chunk.value() < reach(); chunk = chunk.next()) {
    if (owns(chunk) || !is_of_name_space(chunk)) continue;
    const std::uint32_t num_slots = shape_of(chunk).num_slots;
    for (std::uint32_t i = 0; i < num_slots; ++i) {
      num_readable += slot({chunk, i}).load().can_be_read() ? 1 : 0;
    }
  }
  return num_readable;
}

std::uint64_t TierRecords::hash_of(const SlotKey::Content& content) {
  return mixed_bits(content.key.mixed() ^ content.name_space);
}

std::uint32_t TierRecords::stamp_of(SlotWord word, ChunkId chunk) const {
  const ChunkShape shape = shape_of(chunk);
  return slot_stamp(word, shape.num_slots, shape.slab_class);
}

std::optional<BlockKey> TierRecords::key_under(SlotWord word, SlotPlace place) const {
  const auto content = slot_key(place).load(number_of(place));
  if (!content || content->name_space != name_space() ||
      content->stamp != stamp_of(word, place.chunk)) {
    return std::nullopt;
  }
  return content->key;
}

bool TierRecords::has_key(SlotWord word, SlotPlace place) const {
  const auto content = slot_key(place).load(number_of(place));
  return content && content->stamp == stamp_of(word, place.chunk);
}

bool TierRecords::holds(SlotPlace place, const BlockKey& key) const {
  if (place.chunk.value() >= reach() || place.index >= shape_of(place.chunk).num_slots) {
    return false;
  }
  const SlotWord word = slot(place).load();
  return word.can_be_read() && key_under(word, place) == key;
}

void TierRecords::prefetch_slots(const BlockKey& key) const {
  for (const std::uint32_t number : hints_.find(hash_of(key))) {
    if (number < slots_.size()) prefetch_to_write(&slots_[number]);
  }
}

}  // namespace kvferry::cpu_tier
