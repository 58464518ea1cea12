// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/lmcache/object_store.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Values that say whose they are, and memory for stores that costs nothing to make.
namespace kvferry::lmcache {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = kKiB * kKiB;

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

/// Plain memory of this process, without an arena's checks and threads.
class PlainMemory final : public ChunkMemory {
 public:
  explicit PlainMemory(std::uint64_t capacity_bytes)
      : ChunkMemory(store_geometry(capacity_bytes)),
        bytes_(geometry().chunk_bytes * geometry().num_chunks / sizeof(SlotRecord)) {
    set_begin(reinterpret_cast<std::byte*>(bytes_.data()));
  }
  [[nodiscard]] std::uint32_t num_ready() const override { return num_ready_; }
  [[nodiscard]] std::string warning() const override { return {}; }
  [[nodiscard]] std::string description() const override { return "plain"; }
  void set_ready(std::uint32_t num_chunks) { num_ready_ = num_chunks; }

 private:
  std::vector<std::array<char, sizeof(SlotRecord)>> bytes_;
  std::atomic<std::uint32_t> num_ready_ = geometry().num_chunks;
};

inline std::unique_ptr<ObjectStore> make_store(
    std::uint64_t capacity_bytes, cpu_tier::Eviction eviction = cpu_tier::Eviction::kLru,
    DigestFunction digest = &digest_of) {
  return std::make_unique<ObjectStore>(std::make_unique<PlainMemory>(capacity_bytes), eviction,
                                       digest);
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

/// Reserves, writes value_of() where there is a place, and commits. Returns how many were written;
/// -1: refused.
inline int put(ObjectStore& store, const std::vector<Item>& items) {
  auto reserved = store.reserve(keys_of(items), sizes_of(items));
  if (!reserved.ok()) return -1;
  WritableValues values = std::move(reserved).value();
  int num_written = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (values.places()[i] == nullptr) continue;
    const auto value = value_of(items[i].key, items[i].bytes);
    if (!value.empty()) std::memcpy(values.places()[i], value.data(), value.size());
    ++num_written;
  }
  store.commit(std::move(values));
  return num_written;
}

enum class Got { kMiss, kRight, kWrong };

/// Leases one value and compares it.
inline Got get(ObjectStore& store, const Item& item) {
  ReadableValues values =
      store.lease(std::vector<std::string_view>{item.key}, std::vector<std::uint64_t>{item.bytes});
  const std::byte* const place = values.places()[0];
  Got got = Got::kMiss;
  if (place != nullptr) {
    const auto value = value_of(item.key, item.bytes);
    const bool same = value.empty() || std::memcmp(place, value.data(), value.size()) == 0;
    got = same ? Got::kRight : Got::kWrong;
  }
  store.release(std::move(values));
  return got;
}

inline bool has(ObjectStore& store, const std::string& key) {
  return store.lookup(std::vector<std::string_view>{key})[0];
}
inline bool forget(ObjectStore& store, const std::string& key) {
  return store.forget(std::vector<std::string_view>{key})[0];
}

}  // namespace kvferry::lmcache
