// SPDX-License-Identifier: Apache-2.0
// ObjectStore: slots, their records, and what is found in a class.
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/slab_geometry.hpp"
#include "kvferry/lmcache/object_key.hpp"
#include "kvferry/lmcache/object_store.hpp"

#include "object_search.hpp"

#include <algorithm>
#include <cstring>

namespace kvferry::lmcache {

void ObjectStore::find(const SizeClass& in, Search& search) {
  search.readable.clear();
  search.slots.clear();
  search.writable.clear();
  if (search.open.empty()) return;
  const cpu_tier::CpuTier& tier = slabs_.tier(in.id);
  std::vector<cpu_tier::KeyState> states(search.open.size());
  tier.lookup(search.digests_of(search.open), states);
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i] == cpu_tier::KeyState::kReadable) search.readable.push_back(search.open[i]);
    if (states[i] == cpu_tier::KeyState::kWritable) search.writable.push_back(search.open[i]);
  }
  if (search.readable.empty()) return;
  search.slots = tier.lookup_prefix(search.digests_of(search.readable)).slots;
  KVFERRY_CHECK(search.slots.size() == search.readable.size(),
                "a readable key is gone under the store's lock");
  prefetch(in, search.slots);
}

SlotRecord& ObjectStore::record(const SizeClass& of, SlotId slot) const {
  const cpu_tier::SlotPlace place = cpu_tier::place_of(slot, of.slots_per_chunk);
  return memory_->record(chunk_places_[place.chunk], place.index);
}

std::byte* ObjectStore::place(const SizeClass& of, SlotId slot) const {
  const cpu_tier::SlotPlace place = cpu_tier::place_of(slot, of.slots_per_chunk);
  return memory_->chunk(chunk_places_[place.chunk]) + place.index * of.slot_bytes;
}

bool ObjectStore::has_key(const SizeClass& of, SlotId slot, std::string_view key) const {
  const SlotRecord& record = this->record(of, slot);
  if (record.key_bytes != key.size()) return false;
  const void* const held = key.size() <= SlotRecord::kInlineKeyBytes
                               ? static_cast<const void*>(record.key.data())
                               : place(of, slot) + record.value_bytes;
  return key.empty() || std::memcmp(held, key.data(), key.size()) == 0;
}

void ObjectStore::prefetch(const SizeClass& of, std::span<const SlotId> slots) const {
  constexpr std::size_t kLine = 64;
  // Sizes and keys of usual length.
  constexpr std::size_t kLines = 3;
  for (const SlotId slot : slots) {
    const auto* const begin = reinterpret_cast<const char*>(&record(of, slot));
    for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(begin + i * kLine);
  }
}

void ObjectStore::begin_record(const SizeClass& of, SlotId slot, std::string_view key,
                               std::uint64_t value_bytes) {
  SlotRecord& record = this->record(of, slot);
  const std::uint64_t number = next_number_++;
  // Acquires, so that nothing below is written before it.
  record.word.exchange(SlotRecord::word_of(number, RecordState::kWriting),
                       std::memory_order_acq_rel);
  record.value_bytes = value_bytes;
  record.key_bytes = key.size();
  record.check = record_check(key, number, value_bytes);
  const bool is_inline = key.size() <= SlotRecord::kInlineKeyBytes;
  std::copy(key.begin(), key.end(),
            is_inline ? record.key.data() : reinterpret_cast<char*>(place(of, slot) + value_bytes));
}

void ObjectStore::free_records(const SizeClass& of, std::span<const SlotId> slots) {
  for (const SlotId slot : slots) record(of, slot).word.store(0, std::memory_order_release);
}

const ObjectStore::SizeClass* ObjectStore::find_class(std::uint64_t slot_bytes) const {
  const auto next = class_of_bytes_.lower_bound(slot_bytes);
  if (next == class_of_bytes_.end()) return nullptr;
  const bool fits = next->first == slot_bytes || classes_.size() == cpu_tier::SlabTier::kMaxClasses;
  return fits ? &classes_[next->second] : nullptr;
}

const ObjectStore::SizeClass& ObjectStore::make_class(std::uint64_t slot_bytes) {
  if (const SizeClass* const known = find_class(slot_bytes)) return *known;
  const std::uint32_t count = slots_per_chunk(geometry_, slot_bytes);
  const auto entry =
      class_of_bytes_.emplace(slot_bytes, static_cast<std::uint32_t>(classes_.size())).first;
  try {
    classes_.push_back({slabs_.add_class(count), slot_bytes, count, 0});
  } catch (...) {
    class_of_bytes_.erase(entry);
    throw;
  }
  return classes_.back();
}

}  // namespace kvferry::lmcache
