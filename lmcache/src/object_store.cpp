// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/object_store.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/tag_sum.hpp"

#include "object_search.hpp"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

namespace kvferry::lmcache {
namespace {

std::uint64_t sum_of(std::span<const std::uint64_t> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

}  // namespace

ObjectStore::ObjectStore(std::unique_ptr<ChunkMemory> memory, cpu_tier::Eviction eviction,
                         DigestFunction digest)
    : memory_(std::move(memory)),
      geometry_(memory_->geometry()),
      digest_(digest),
      tier_(geometry_.num_chunks, {}, {eviction, cpu_tier::Admission::kAlways, 0},
            cpu_tier::peers_in(memory_->directory())) {
  MutexLock lock(mutex_);
  // With this capacity, the elements never move.
  classes_.reserve(geometry_.sizes.size());
  class_of_size_.resize(geometry_.sizes.size());
  take_ready_chunks();
  learn_classes();
  if (memory_->directory() != nullptr) keeper_.emplace(tier_, *memory_->directory());
}

ObjectStore::~ObjectStore() = default;

Result<WritableValues, NotStored> ObjectStore::reserve(std::span<const std::string_view> keys,
                                                       std::span<const std::uint64_t> value_bytes) {
  KVFERRY_CHECK(keys.size() == value_bytes.size(), "a size for each key");
  Batch batch{Search(keys, digest_), value_bytes, {}};
  batch.sizes.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto size = geometry_.size_for(value_bytes[i], keys[i].size());
    if (!size) {
      return NotStored{"a value of " + std::to_string(value_bytes[i]) +
                       " bytes does not fit into a chunk of " +
                       std::to_string(geometry_.chunk_bytes) + " bytes: raise capacity" +
                       (memory_->directory() == nullptr ? "" : ", or set shared_chunk_bytes")};
    }
    batch.sizes.push_back(*size);
  }
  WritableValues values(keys.size());
  MutexLock lock(mutex_);
  const Step step(tier_);
  take_ready_chunks();
  // Chunks that this store takes over can have values of other slot sizes.
  learn_classes();
  settle_present(batch);
  std::vector<std::uint32_t> wanted;
  for (const std::size_t i : batch.search.open) {
    const std::uint32_t size = batch.sizes[i];
    if (std::find(wanted.begin(), wanted.end(), size) == wanted.end()) wanted.push_back(size);
  }
  values.parts_.reserve(wanted.size());
  try {
    for (const std::uint32_t size : wanted) {
      if (reserve_class(batch, size, values)) continue;
      give_back(std::move(values));
      ++num_refused_;
      return NotStored{"no room for " + std::to_string(sum_of(value_bytes)) +
                       " bytes in a store of " + std::to_string(geometry_.num_chunks) +
                       " chunks of " + std::to_string(geometry_.chunk_bytes) +
                       " bytes; values in use cannot be evicted: raise capacity"};
    }
  } catch (...) {
    give_back(std::move(values));
    throw;
  }
  return values;
}

void ObjectStore::settle_present(Batch& batch) {
  Search& search = batch.search;
  // Among equal keys, the first one counts.
  std::vector<std::size_t> order = search.open;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto key_a = search.digests[a].mixed();
    const auto key_b = search.digests[b].mixed();
    return key_a != key_b ? key_a < key_b : a < b;
  });
  std::vector<std::size_t> settled;
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (search.digests[order[i]] == search.digests[order[i - 1]]) settled.push_back(order[i]);
  }
  std::sort(settled.begin(), settled.end());
  search.close(settled);

  for (const SizeClass& one : classes_) {
    find(one, search);
    settled = search.writable;
    std::vector<std::size_t> replaced;
    std::vector<std::size_t> held;
    for (std::size_t i = 0; i < search.readable.size(); ++i) {
      const std::size_t key = search.readable[i];
      if (has_value(one, search.slots[i], search.keys[key], batch.value_bytes[key])) {
        held.push_back(key);
      } else if (is_own(one, search.slots[i])) {
        replaced.push_back(key);
      }
    }
    if (!replaced.empty()) forget_found(one, search.digests_in(one, replaced));
    if (!held.empty()) tier_.touch(one.id, search.digests_in(one, held));
    settled.insert(settled.end(), held.begin(), held.end());
    std::sort(settled.begin(), settled.end());
    search.close(settled);
  }
}

bool ObjectStore::reserve_class(const Batch& batch, std::uint32_t size, WritableValues& values) {
  const SizeClass& of = make_class(size);
  std::vector<std::size_t> which;
  for (const std::size_t i : batch.search.open) {
    if (batch.sizes[i] == size) which.push_back(i);
  }
  std::vector<Digest> digests = batch.search.digests_in(of, which);
  // The policy learns of the offer; its answers do not matter, because all values are stored.
  std::vector<cpu_tier::OfferAnswer> ignored(digests.size());
  tier_.offer(of.id, digests, ignored);
  if (KVFERRY_FAULT_POINT("lmcache.reserve")) throw std::bad_alloc();
  auto reserved = tier_.reserve(of.id, digests);
  while (!reserved.ok()) {
    const std::optional<std::size_t> present = reserved.otherwise().present;
    if (!present) return false;
    settle_adopted(batch, of, which, *present);
    if (which.empty()) return true;
    digests = batch.search.digests_in(of, which);
    reserved = tier_.reserve(of.id, digests);
  }
  values.parts_.push_back(std::move(reserved).value().hand_over());
  const std::span<const SlotId> slots = values.parts_.back().slots();
  for (std::size_t i = 0; i < which.size(); ++i) {
    const std::size_t key = which[i];
    const std::uint64_t bytes = batch.value_bytes[key];
    write_record(of, slots[i], batch.search.keys[key], bytes);
    enter(values, key, of, slots[i], batch.search.identity(key, bytes));
  }
  return true;
}

void ObjectStore::settle_adopted(const Batch& batch, const SizeClass& of,
                                 std::vector<std::size_t>& which, std::size_t present) {
  const std::size_t key = which[present];
  const std::vector<Digest> digest = batch.search.digests_in(of, {&key, 1});
  const std::vector<SlotId> slots = tier_.lookup_prefix(of.id, digest).slots;
  KVFERRY_CHECK(slots.size() == 1, "a key is present and not readable under the store's lock");
  if (has_value(of, slots[0], batch.search.keys[key], batch.value_bytes[key])) {
    which.erase(which.begin() + static_cast<std::ptrdiff_t>(present));
  } else {
    forget_found(of, digest);
  }
}

void ObjectStore::commit(WritableValues&& values, std::span<const std::uint64_t> sums) noexcept {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (values.places_[i] == nullptr) continue;
    values.described_[i].record->tag = gpu::tag_of(sums[i], values.described_[i].identity);
  }
  KVFERRY_PAUSE_POINT("lmcache.tagged");
  MutexLock lock(mutex_);
  for (cpu_tier::WritableSlots& slots : values.parts_) {
    tier_.commit(std::move(slots));
    KVFERRY_PAUSE_POINT("lmcache.committed_class");
  }
}

void ObjectStore::abort(WritableValues&& values) noexcept {
  MutexLock lock(mutex_);
  give_back(std::move(values));
}

void ObjectStore::give_back(WritableValues&& values) {
  for (cpu_tier::WritableSlots& slots : values.parts_) {
    tier_.release(tier_.abort(std::move(slots)));
  }
}

ReadableValues ObjectStore::lease(std::span<const std::string_view> keys,
                                  std::span<const std::uint64_t> value_bytes) {
  KVFERRY_CHECK(keys.size() == value_bytes.size(), "a size for each key");
  Search search(keys, digest_);
  std::vector<std::optional<std::uint32_t>> sizes(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    sizes[i] = geometry_.size_for(value_bytes[i], keys[i].size());
  }
  const std::vector<std::size_t> all = search.open;
  ReadableValues values(keys.size());
  MutexLock lock(mutex_);
  const Step step(tier_);
  take_ready_chunks();
  const auto is_unknown = [this](const auto& size) KVFERRY_REQUIRES(mutex_) {
    return size && find_class(*size) == nullptr;
  };
  if (std::any_of(sizes.begin(), sizes.end(), is_unknown)) learn_classes();
  values.parts_.reserve(classes_.size());
  try {
    for (const SizeClass& one : classes_) {
      search.open.clear();
      for (const std::size_t i : all) {
        if (sizes[i] && find_class(*sizes[i]) == &one) search.open.push_back(i);
      }
      if (!search.open.empty()) lease_class(one, search, keys, value_bytes, values);
    }
  } catch (...) {
    release(std::move(values));
    throw;
  }
  return values;
}

void ObjectStore::lease_class(const SizeClass& one, Search& search,
                              std::span<const std::string_view> keys,
                              std::span<const std::uint64_t> value_bytes, ReadableValues& values) {
  find(one, search);
  std::vector<std::size_t> hits;
  for (std::size_t i = 0; i < search.readable.size(); ++i) {
    const std::size_t key = search.readable[i];
    if (has_value(one, search.slots[i], keys[key], value_bytes[key])) hits.push_back(key);
  }
  if (hits.empty()) return;
  if (KVFERRY_FAULT_POINT("lmcache.lease")) throw std::bad_alloc();
  auto lease = tier_.lease(one.id, search.digests_in(one, hits));
  KVFERRY_CHECK(lease.ok(), "a readable key is gone under the store's lock");
  values.parts_.push_back(std::move(lease).value());
  const std::span<const SlotId> slots = values.parts_.back().slots();
  for (std::size_t i = 0; i < hits.size(); ++i) {
    enter(values, hits[i], one, slots[i], search.identity(hits[i], value_bytes[hits[i]]));
  }
}

void ObjectStore::release(ReadableValues&& values) noexcept {
  for (cpu_tier::Lease& lease : values.parts_) tier_.release(std::move(lease));
}

std::vector<bool> ObjectStore::lookup(std::span<const std::string_view> keys) {
  Search search(keys, digest_);
  std::vector<bool> found(keys.size());
  MutexLock lock(mutex_);
  const Step step(tier_);
  take_ready_chunks();
  std::size_t num_asked = 0;
  do {
    for (; num_asked < classes_.size() && !search.open.empty(); ++num_asked) {
      look_up_in(classes_[num_asked], search, found);
    }
  } while (!search.open.empty() && learn_classes());
  return found;
}

void ObjectStore::look_up_in(const SizeClass& in, Search& search, std::vector<bool>& found) {
  find(in, search);
  std::vector<std::size_t> hits;
  for (std::size_t i = 0; i < search.readable.size(); ++i) {
    if (!has_key(in, search.slots[i], search.keys[search.readable[i]])) continue;
    hits.push_back(search.readable[i]);
    found[search.readable[i]] = true;
  }
  if (hits.empty()) return;
  tier_.touch(in.id, search.digests_in(in, hits));
  search.close(hits);
}

std::vector<bool> ObjectStore::forget(std::span<const std::string_view> keys) {
  Search search(keys, digest_);
  std::vector<bool> forgotten(keys.size());
  MutexLock lock(mutex_);
  const Step step(tier_);
  for (const SizeClass& one : classes_) {
    find(one, search);
    std::vector<std::size_t> hits;
    std::vector<SlotId> seen;
    for (std::size_t i = 0; i < search.readable.size(); ++i) {
      const SlotId slot = search.slots[i];
      if (!has_key(one, slot, keys[search.readable[i]])) continue;
      // If a key is given twice, only the first counts.
      if (std::find(seen.begin(), seen.end(), slot) != seen.end()) continue;
      seen.push_back(slot);
      forgotten[search.readable[i]] = true;
      if (is_own(one, slot)) hits.push_back(search.readable[i]);
    }
    if (!hits.empty()) forget_found(one, search.digests_in(one, hits));
  }
  return forgotten;
}

void ObjectStore::forget_found(const SizeClass& in, std::span<const Digest> digests) {
  auto lease = tier_.lease(in.id, digests);
  KVFERRY_CHECK(lease.ok(), "a readable key is gone under the store's lock");
  try {
    tier_.forget(lease.value());
  } catch (...) {
    tier_.release(std::move(lease).value());
    throw;
  }
  tier_.release(std::move(lease).value());
}

StoreSnapshot ObjectStore::snapshot() const {
  StoreSnapshot now;
  if (const auto* const directory = memory_->directory()) {
    now.num_objects_of_others = directory->records().num_readable_of_others();
  }
  MutexLock lock(mutex_);
  const cpu_tier::SlabSnapshot slabs = tier_.slab_snapshot();
  now.chunk_bytes = slabs.num_chunks * geometry_.chunk_bytes;
  now.ready_bytes = num_ready_ * geometry_.chunk_bytes;
  now.num_refused_total = num_refused_;
  now.num_damaged_total = num_damaged_;
  now.num_size_classes = static_cast<std::uint32_t>(classes_.size());
  for (const SizeClass& one : classes_) {
    const cpu_tier::TierSnapshot& tier = slabs.classes[one.id.value()].tier;
    now.num_objects += std::uint64_t{tier.num_evictable} + tier.num_leased;
    now.slot_bytes += (tier.num_slots - tier.num_free) * one.slots.bytes;
    now.num_stored_total += tier.num_committed_total;
    now.num_evicted_total += tier.num_evicted_total;
  }
  return now;
}

void ObjectStore::check_invariants() const {
  MutexLock lock(mutex_);
  tier_.check_invariants();
}

}  // namespace kvferry::lmcache
