// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/tier_layout.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/base/rounded_up.hpp"
#include "kvferry/cpu_tier/hint_index.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <type_traits>

namespace kvferry::cpu_tier {
namespace {

using KeyWords = std::array<std::uint64_t, SlotKey::kKeyWords>;
static_assert(std::is_trivially_copyable_v<BlockKey> && sizeof(KeyWords) == sizeof(BlockKey));

std::uint64_t check_of(const BlockKey& key, std::uint64_t name_space) {
  // Never 0: zeros are no key.
  return mixed_bits(key.mixed() + name_space) | 1U;
}

}  // namespace

void store_name(InstanceRecord& record, std::string_view name) {
  std::array<std::uint64_t, std::tuple_size_v<decltype(record.name)>> words{};
  std::memcpy(words.data(), name.data(), std::min(name.size(), sizeof words - 1));
  for (std::size_t i = 0; i < words.size(); ++i) {
    record.name[i].store(words[i], std::memory_order_relaxed);
  }
}

std::string load_name(const InstanceRecord& record) {
  std::array<char, sizeof record.name> text{};
  for (std::size_t i = 0; i < record.name.size(); ++i) {
    const std::uint64_t word = record.name[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof word, &word, sizeof word);
  }
  return {text.data(), ::strnlen(text.data(), text.size())};
}

void SlotKey::store(const BlockKey& of, std::uint64_t name_space_of) {
  const auto words = std::bit_cast<KeyWords>(of);
  for (std::size_t i = 0; i < kKeyWords; ++i) key[i].store(words[i], std::memory_order_relaxed);
  name_space.store(name_space_of, std::memory_order_relaxed);
  check.store(check_of(of, name_space_of), std::memory_order_relaxed);
}

std::optional<SlotKey::Content> SlotKey::load() const {
  KeyWords words;
  for (std::size_t i = 0; i < kKeyWords; ++i) words[i] = key[i].load(std::memory_order_relaxed);
  const Content found{std::bit_cast<BlockKey>(words), name_space.load(std::memory_order_relaxed)};
  if (check.load(std::memory_order_relaxed) != check_of(found.key, found.name_space)) {
    return std::nullopt;
  }
  return found;
}

std::optional<BlockKey> SlotKey::load(std::uint64_t name_space_of) const {
  const std::optional<Content> found = load();
  if (!found || found->name_space != name_space_of) return std::nullopt;
  return found->key;
}

TierPlaces tier_places(const TierShape& shape, std::uint64_t page_bytes) {
  const std::uint64_t num_slots = std::uint64_t{shape.num_chunks} * shape.max_chunk_slots;
  if (num_slots == 0 || num_slots >= HintIndex::kMaxSlots || shape.chunk_bytes == 0 ||
      shape.chunk_bytes % page_bytes != 0 || shape.num_ranks == 0 ||
      shape.num_ranks > kMaxTierRanks) {
    throw ConfigError("a shared tier of " + std::to_string(shape.num_chunks) + " chunks of " +
                      std::to_string(shape.chunk_bytes) + " bytes (whole pages of " +
                      std::to_string(page_bytes) + ") with " +
                      std::to_string(shape.max_chunk_slots) + " slots at most on " +
                      std::to_string(shape.num_ranks) + " ranks (1 to " +
                      std::to_string(kMaxTierRanks) + ") cannot be: of everything one or more, " +
                      "and fewer than 2^32 slots; ask for another size");
  }
  TierPlaces places;
  std::uint64_t end = kTierPageBytes;
  const auto place = [&end](std::uint64_t count, std::uint64_t bytes) {
    const std::uint64_t begin = end;
    end = rounded_up(begin + count * bytes, kTierPageBytes);
    return begin;
  };
  places.num_hints = HintIndex::num_hints_for(num_slots);
  places.instances = place(kMaxInstances, sizeof(InstanceRecord));
  places.chunks = place(shape.num_chunks, sizeof(ChunkRecord));
  places.hints = place(places.num_hints, sizeof(std::uint64_t));
  places.slots = place(num_slots, sizeof(SlotLine));
  places.arenas = rounded_up(end, page_bytes);
  places.end = places.arenas + shape.num_chunks * shape.chunk_bytes * shape.num_ranks;
  return places;
}

}  // namespace kvferry::cpu_tier
