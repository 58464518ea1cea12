// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/object_store.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/test_hooks.hpp"

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

Result<WritableValues, NotStored> ObjectStore::reserve(std::span<const std::string_view> keys,
                                                       std::span<const std::uint64_t> value_bytes) {
  KVFERRY_CHECK(keys.size() == value_bytes.size(), "a size for each key");
  Batch batch{Search(keys, digest_), value_bytes, {}};
  batch.slot_bytes.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto bytes = slot_bytes_of(geometry_, value_bytes[i], keys[i].size());
    if (!bytes) {
      return NotStored{"a value of " + std::to_string(value_bytes[i]) +
                       " bytes does not fit into a chunk of " +
                       std::to_string(geometry_.chunk_bytes) + " bytes: raise capacity"};
    }
    batch.slot_bytes.push_back(*bytes);
  }
  WritableValues values;
  values.places_.resize(keys.size());
  MutexLock lock(mutex_);
  take_ready_chunks();
  settle_present(batch);
  std::vector<std::uint32_t> wanted;
  for (const std::size_t i : batch.search.open) {
    const std::uint32_t id = make_class(batch.slot_bytes[i]).id.value();
    if (std::find(wanted.begin(), wanted.end(), id) == wanted.end()) wanted.push_back(id);
  }
  values.parts_.reserve(wanted.size());
  try {
    for (const std::uint32_t id : wanted) {
      if (reserve_class(batch, classes_[id], values)) continue;
      give_back(std::move(values));
      ++num_refused_;
      return NotStored{"no room for " + std::to_string(sum_of(value_bytes)) +
                       " bytes in a store of " + std::to_string(geometry_.num_chunks) +
                       " chunks of " + std::to_string(geometry_.chunk_bytes) +
                       " bytes, what is in use left out: raise capacity"};
    }
  } catch (...) {
    give_back(std::move(values));
    throw;
  }
  return values;
}

void ObjectStore::settle_present(Batch& batch) {
  Search& search = batch.search;
  // Of equal keys the first stays.
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
      const bool same = has_key(one, search.slots[i], search.keys[key]) &&
                        record(one, search.slots[i]).value_bytes == batch.value_bytes[key];
      (same ? held : replaced).push_back(key);
    }
    if (!replaced.empty()) forget_found(one, search.digests_of(replaced));
    if (!held.empty()) slabs_.tier(one.id).touch(search.digests_of(held));
    settled.insert(settled.end(), held.begin(), held.end());
    std::sort(settled.begin(), settled.end());
    search.close(settled);
  }
}

bool ObjectStore::reserve_class(const Batch& batch, const SizeClass& of, WritableValues& values) {
  std::vector<std::size_t> which;
  for (const std::size_t i : batch.search.open) {
    if (find_class(batch.slot_bytes[i]) == &of) which.push_back(i);
  }
  const std::vector<Digest> digests = batch.search.digests_of(which);
  // All are stored, and the policy learns of them.
  std::vector<cpu_tier::OfferAnswer> ignored(digests.size());
  slabs_.tier(of.id).offer(digests, ignored);
  if (KVFERRY_FAULT_POINT("lmcache.reserve")) throw std::bad_alloc();
  auto reserved = slabs_.reserve(of.id, digests);
  follow_chunks(of.id);
  if (!reserved.ok()) return false;
  const std::span<const SlotId> slots = reserved.value().slots();
  for (std::size_t i = 0; i < which.size(); ++i) {
    begin_record(of, slots[i], batch.search.keys[which[i]], batch.value_bytes[which[i]]);
    values.places_[which[i]] = place(of, slots[i]);
  }
  values.parts_.push_back({of.id, std::move(reserved).value().hand_over()});
  return true;
}

void ObjectStore::commit(WritableValues&& values) noexcept {
  MutexLock lock(mutex_);
  for (auto& [id, slots] : values.parts_) {
    for (const SlotId slot : slots.slots()) {
      std::atomic<std::uint64_t>& word = record(classes_[id.value()], slot).word;
      word.store(SlotRecord::word_of(SlotRecord::number_of(word.load(std::memory_order_relaxed)),
                                     RecordState::kReadable),
                 std::memory_order_release);
      KVFERRY_PAUSE_POINT("lmcache.committed_one");
    }
    slabs_.tier(id).commit(std::move(slots));
  }
}

void ObjectStore::abort(WritableValues&& values) noexcept {
  MutexLock lock(mutex_);
  give_back(std::move(values));
}

void ObjectStore::give_back(WritableValues&& values) {
  for (auto& [id, slots] : values.parts_) {
    free_records(classes_[id.value()], slots.slots());
    cpu_tier::CpuTier& tier = slabs_.tier(id);
    tier.release(tier.abort(std::move(slots)));
  }
}

ReadableValues ObjectStore::lease(std::span<const std::string_view> keys,
                                  std::span<const std::uint64_t> value_bytes) {
  KVFERRY_CHECK(keys.size() == value_bytes.size(), "a size for each key");
  Search search(keys, digest_);
  std::vector<std::uint64_t> slot_bytes(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    slot_bytes[i] = slot_bytes_of(geometry_, value_bytes[i], keys[i].size()).value_or(0);
  }
  const std::vector<std::size_t> all = search.open;
  ReadableValues values;
  values.places_.resize(keys.size());
  MutexLock lock(mutex_);
  values.parts_.reserve(classes_.size());
  for (const SizeClass& one : classes_) {
    search.open.clear();
    for (const std::size_t i : all) {
      if (slot_bytes[i] != 0 && find_class(slot_bytes[i]) == &one) search.open.push_back(i);
    }
    if (search.open.empty()) continue;
    find(one, search);
    std::vector<std::size_t> hits;
    for (std::size_t i = 0; i < search.readable.size(); ++i) {
      const std::size_t key = search.readable[i];
      if (!has_key(one, search.slots[i], keys[key]) ||
          record(one, search.slots[i]).value_bytes != value_bytes[key]) {
        continue;
      }
      hits.push_back(key);
      values.places_[key] = place(one, search.slots[i]);
    }
    if (hits.empty()) continue;
    auto lease = slabs_.tier(one.id).lease(search.digests_of(hits));
    KVFERRY_CHECK(lease.ok(), "a readable key is gone under the store's lock");
    values.parts_.push_back({one.id, std::move(lease).value()});
  }
  return values;
}

void ObjectStore::release(ReadableValues&& values) noexcept {
  for (auto& [id, lease] : values.parts_) slabs_.tier(id).release(std::move(lease));
}

std::vector<bool> ObjectStore::lookup(std::span<const std::string_view> keys) {
  Search search(keys, digest_);
  std::vector<bool> found(keys.size());
  MutexLock lock(mutex_);
  for (const SizeClass& one : classes_) {
    if (search.open.empty()) break;
    find(one, search);
    std::vector<std::size_t> hits;
    for (std::size_t i = 0; i < search.readable.size(); ++i) {
      if (!has_key(one, search.slots[i], keys[search.readable[i]])) continue;
      hits.push_back(search.readable[i]);
      found[search.readable[i]] = true;
    }
    if (hits.empty()) continue;
    slabs_.tier(one.id).touch(search.digests_of(hits));
    search.close(hits);
  }
  return found;
}

std::vector<bool> ObjectStore::forget(std::span<const std::string_view> keys) {
  Search search(keys, digest_);
  std::vector<bool> forgotten(keys.size());
  MutexLock lock(mutex_);
  for (const SizeClass& one : classes_) {
    find(one, search);
    std::vector<std::size_t> hits;
    std::vector<SlotId> seen;
    for (std::size_t i = 0; i < search.readable.size(); ++i) {
      const SlotId slot = search.slots[i];
      if (!has_key(one, slot, keys[search.readable[i]])) continue;
      // Of a key that is given twice the first is told.
      if (std::find(seen.begin(), seen.end(), slot) != seen.end()) continue;
      seen.push_back(slot);
      hits.push_back(search.readable[i]);
      forgotten[search.readable[i]] = true;
    }
    if (!hits.empty()) forget_found(one, search.digests_of(hits));
  }
  return forgotten;
}

void ObjectStore::forget_found(const SizeClass& in, std::span<const Digest> digests) {
  cpu_tier::CpuTier& tier = slabs_.tier(in.id);
  auto lease = tier.lease(digests);
  KVFERRY_CHECK(lease.ok(), "a readable key is gone under the store's lock");
  free_records(in, lease.value().slots());
  tier.forget(lease.value());
  tier.release(std::move(lease).value());
}

}  // namespace kvferry::lmcache
