// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/check.hpp"
#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/cpu_tier/memory/arena_source.hpp"
#include "kvferry/gpu/tag_sum.hpp"
#include "kvferry/lmcache/object_store.hpp"

#include "byte_sizes.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Values that say whose they are, and memory for stores that costs nothing to make.
namespace kvferry::lmcache {

/// Bytes that depend on the key, the size and the place: every 512 of them begin with a word of
/// their own.
inline std::vector<std::byte> value_of(std::string_view key, std::uint64_t bytes) {
  const std::uint64_t seed = std::hash<std::string_view>{}(key) ^ mixed_bits(bytes);
  std::array<std::uint64_t, 64> words;
  for (std::uint64_t i = 0; i < words.size(); ++i) words[i] = mixed_bits(seed + i);
  std::vector<std::byte> value(bytes);
  for (std::uint64_t i = 0; i < bytes; i += sizeof words) {
    words[0] = mixed_bits(seed ^ i);
    std::memcpy(value.data() + i, words.data(), std::min<std::uint64_t>(sizeof words, bytes - i));
  }
  return value;
}

/// Compared as a whole: byte by byte it takes most of a test's time under ThreadSanitizer.
inline bool is_value_of(const std::vector<std::byte>& bytes, std::string_view key) {
  const auto value = value_of(key, bytes.size());
  return bytes.empty() || std::memcmp(bytes.data(), value.data(), bytes.size()) == 0;
}

/// Memory of this process, without a look at the machine and threads that populate it. A piece is a
/// chunk.
class PlainSource final : public cpu_tier::ArenaSource {
 public:
  [[nodiscard]] cpu_tier::ArenaGrant grant(const cpu_tier::ArenaShape& asked,
                                           const cpu_tier::ArenaOptions& /*options*/) override {
    bytes_ = asked.bytes();
    return {.num_chunks = asked.num_chunks, .chunks_per_piece = 1};
  }
  [[nodiscard]] std::unique_ptr<cpu_tier::HostMapping> map() override {
    return std::make_unique<cpu_tier::HostMapping>(bytes_, cpu_tier::PageKind::kNormal);
  }
  [[nodiscard]] std::optional<std::chrono::nanoseconds> make_resident(
      cpu_tier::ArenaPages& /*pages*/, cpu_tier::ChunkRange /*chunks*/,
      const std::stop_token& /*stop*/) override {
    return std::chrono::nanoseconds(0);
  }

 private:
  std::uint64_t bytes_ = 0;
};

/// Of which nothing is ready.
inline std::unique_ptr<ChunkMemory> empty_memory(std::uint64_t capacity_bytes) {
  return std::make_unique<ChunkMemory>(store_geometry(capacity_bytes),
                                       std::make_unique<PlainSource>(), cpu_tier::ArenaOptions{});
}

/// All of which is ready.
inline std::unique_ptr<ChunkMemory> plain_memory(std::uint64_t capacity_bytes) {
  auto memory = empty_memory(capacity_bytes);
  while (memory->num_ready() < memory->geometry().num_chunks) memory->grow(capacity_bytes);
  return memory;
}

inline std::unique_ptr<ObjectStore> make_store(
    std::uint64_t capacity_bytes, cpu_tier::Eviction eviction = cpu_tier::Eviction::kLru,
    DigestFunction digest = &digest_of) {
  return std::make_unique<ObjectStore>(plain_memory(capacity_bytes), eviction, digest);
}

struct Item {
  std::string key;
  std::uint64_t bytes = 0;
};

inline std::vector<std::string_view> keys_of(const std::vector<Item>& items) {
  std::vector<std::string_view> keys;
  for (const Item& item : items) keys.emplace_back(item.key);
  return keys;
}

inline std::vector<std::uint64_t> sizes_of(const std::vector<Item>& items) {
  std::vector<std::uint64_t> sizes;
  for (const Item& item : items) sizes.push_back(item.bytes);
  return sizes;
}

/// Reserves, writes value_of() where there is a place, and commits with tags. Returns how many were
/// written; -1: refused.
inline int put(ObjectStore& store, const std::vector<Item>& items) {
  auto reserved = store.reserve(keys_of(items), sizes_of(items));
  if (!reserved.ok()) return -1;
  WritableValues values = std::move(reserved).value();
  int num_written = 0;
  std::vector<std::uint64_t> sums(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (values.places()[i] == nullptr) continue;
    const auto value = value_of(items[i].key, items[i].bytes);
    sums[i] = gpu::copy_and_sum(values.places()[i], value, 0, value.data());
    ++num_written;
  }
  store.commit(std::move(values), sums);
  return num_written;
}

enum class Got { kMiss, kRight, kWrong };

/// Leases one value and compares it, its bytes before its tag.
inline Got get(ObjectStore& store, const Item& item) {
  ReadableValues values =
      store.lease(std::vector<std::string_view>{item.key}, std::vector<std::uint64_t>{item.bytes});
  const std::byte* const place = values.places()[0];
  Got got = Got::kMiss;
  if (place != nullptr) {
    const auto value = value_of(item.key, item.bytes);
    const bool same = value.empty() || std::memcmp(place, value.data(), value.size()) == 0;
    got = same ? Got::kRight : Got::kWrong;
    const std::uint64_t sum = gpu::tag_sum({place, item.bytes}, 0);
    const bool refused = !store.withdraw_damaged(values, std::vector<std::uint64_t>{sum}).empty();
    if (refused) got = same ? Got::kWrong : Got::kMiss;
  }
  store.release(std::move(values));
  return got;
}

/// Where a value lies, for a test that damages it; null if it is not held.
inline std::byte* place_of(ObjectStore& store, const Item& item) {
  ReadableValues values =
      store.lease(std::vector<std::string_view>{item.key}, std::vector<std::uint64_t>{item.bytes});
  auto* const place = const_cast<std::byte*>(values.places()[0]);
  store.release(std::move(values));
  return place;
}
/// The record of the value at `place`, which has the key and the size of `item`.
inline SlotRecord* record_at(const ChunkMemory& memory, const std::byte* place, const Item& item) {
  const StoreGeometry& geometry = memory.geometry();
  const auto size = geometry.size_for(item.bytes, item.key.size());
  KVFERRY_CHECK(size.has_value(), "a value has a place that fits nowhere");
  const auto offset = static_cast<std::uint64_t>(place - memory.chunk(ChunkId(0)));
  const SlotSize& slots = geometry.sizes[*size];
  const std::uint64_t index = offset % geometry.chunk_bytes / slots.bytes;
  KVFERRY_CHECK(offset / geometry.chunk_bytes < geometry.num_chunks && index < slots.num_slots,
                "a value lies outside of its chunk's slots");
  return &memory.record(ChunkId(static_cast<std::uint32_t>(offset / geometry.chunk_bytes)),
                        static_cast<std::uint32_t>(index));
}

inline bool has(ObjectStore& store, const std::string& key) {
  return store.lookup(std::vector<std::string_view>{key})[0];
}
inline bool forget(ObjectStore& store, const std::string& key) {
  return store.forget(std::vector<std::string_view>{key})[0];
}

}  // namespace kvferry::lmcache
