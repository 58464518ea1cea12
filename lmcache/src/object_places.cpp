// SPDX-License-Identifier: Apache-2.0
// ObjectStore: classes, slots with their records, and the search in a class.
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/gpu/tag_sum.hpp"
#include "kvferry/lmcache/object_store.hpp"

#include "object_search.hpp"

#include <algorithm>
#include <cstring>

namespace kvferry::lmcache {

const ObjectStore::SizeClass* ObjectStore::find_class(std::uint32_t size) const {
  const std::optional<SlabClassId> id = class_of_size_[size];
  return id ? &classes_[id->value()] : nullptr;
}

const ObjectStore::SizeClass& ObjectStore::make_class(std::uint32_t size) {
  if (const SizeClass* const known = find_class(size)) return *known;
  const SlotSize& slots = geometry_.sizes[size];
  classes_.push_back({tier_.add_class(slots.num_slots), slots});
  class_of_size_[size] = classes_.back().id;
  return classes_.back();
}

bool ObjectStore::learn_classes() {
  const cpu_tier::TierDirectory* const directory = memory_->directory();
  if (directory == nullptr || directory->leases().is_alone()) return false;
  const std::size_t num_known = classes_.size();
  for (const cpu_tier::ChunkShape& shape : directory->records().shapes()) {
    // Any other number was written by a different program.
    if (const auto size = geometry_.size_with(shape.num_slots)) make_class(*size);
  }
  return classes_.size() > num_known;
}

void ObjectStore::take_ready_chunks() {
  const std::uint32_t num_ready = memory_->num_ready();
  if (num_ready == num_ready_) return;
  tier_.grow_to(num_ready);
  num_ready_ = num_ready;
}

void ObjectStore::find(const SizeClass& in, Search& search) {
  search.readable.clear();
  search.slots.clear();
  search.writable.clear();
  if (search.open.empty()) return;
  std::vector<cpu_tier::KeyState> states(search.open.size());
  tier_.lookup(in.id, search.digests_in(in, search.open), states);
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i] == cpu_tier::KeyState::kReadable) search.readable.push_back(search.open[i]);
    if (states[i] == cpu_tier::KeyState::kWritable) search.writable.push_back(search.open[i]);
  }
  if (search.readable.empty()) return;
  search.slots = tier_.lookup_prefix(in.id, search.digests_in(in, search.readable)).slots;
  KVFERRY_CHECK(search.slots.size() == search.readable.size(),
                "a readable key is gone under the store's lock");
  prefetch(in, search.slots);
}

SlotRecord& ObjectStore::record(const SizeClass& of, SlotId slot) const {
  const cpu_tier::SlotPlace place = cpu_tier::place_of(slot, of.slots.num_slots);
  return memory_->record(place.chunk, place.index);
}

std::byte* ObjectStore::place(const SizeClass& of, SlotId slot) const {
  const cpu_tier::SlotPlace place = cpu_tier::place_of(slot, of.slots.num_slots);
  return memory_->chunk(place.chunk) + place.index * of.slots.bytes;
}

bool ObjectStore::is_own(const SizeClass& of, SlotId slot) const {
  const cpu_tier::TierDirectory* const directory = memory_->directory();
  return directory == nullptr ||
         directory->owns(cpu_tier::place_of(slot, of.slots.num_slots).chunk);
}

bool ObjectStore::has_key(const SizeClass& of, SlotId slot, std::string_view key) const {
  const SlotRecord& record = this->record(of, slot);
  if (record.key_bytes != key.size()) return false;
  const char* held = record.key.data();
  if (key.size() > SlotRecord::kInlineKeyBytes) {
    // A record that a different program wrote must not lead outside the slot.
    const std::uint64_t value_bytes = record.value_bytes;
    if (value_bytes > of.slots.bytes || key.size() > of.slots.bytes - value_bytes) return false;
    held = reinterpret_cast<const char*>(place(of, slot) + value_bytes);
  }
  return std::string_view(held, key.size()) == key;
}

bool ObjectStore::has_value(const SizeClass& of, SlotId slot, std::string_view key,
                            std::uint64_t value_bytes) const {
  return record(of, slot).value_bytes == value_bytes && has_key(of, slot, key);
}

void ObjectStore::prefetch(const SizeClass& of, std::span<const SlotId> slots) const {
  constexpr std::size_t kLine = 64;
  // Enough for the sizes and for keys of the usual length.
  constexpr std::size_t kLines = 3;
  for (const SlotId slot : slots) {
    const auto* const begin = reinterpret_cast<const char*>(&record(of, slot));
    for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(begin + i * kLine);
  }
}

void ObjectStore::write_record(const SizeClass& of, SlotId slot, std::string_view key,
                               std::uint64_t value_bytes) {
  SlotRecord& record = this->record(of, slot);
  record.value_bytes = value_bytes;
  record.key_bytes = key.size();
  record.tag = gpu::kNoTag;
  const bool is_inline = key.size() <= SlotRecord::kInlineKeyBytes;
  std::copy(key.begin(), key.end(),
            is_inline ? record.key.data() : reinterpret_cast<char*>(place(of, slot) + value_bytes));
}

}  // namespace kvferry::lmcache
