// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_layout.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/base/rounded_up.hpp"
#include "kvferry/cpu_tier/memory/arena_options.hpp"
#include "kvferry/cpu_tier/peers/hint_index.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <type_traits>

namespace kvferry::cpu_tier {
namespace {

using KeyWords = std::array<std::uint64_t, SlotKey::kKeyWords>;
static_assert(std::is_trivially_copyable_v<BlockKey> && sizeof(KeyWords) == sizeof(BlockKey));

constexpr unsigned kCheckBits = 40;
constexpr std::uint64_t kCheckMask = (std::uint64_t{1} << kCheckBits) - 1;

/// The check of a key with stamp 0.
std::uint64_t check_of(std::uint64_t slot_number, const BlockKey& key, std::uint64_t name_space) {
  // It is never 0, because zeros mean that there is no key.
  return mixed_bits(key.mixed() + name_space + mixed_bits(slot_number)) | 1U;
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

void SlotKey::store(std::uint64_t slot_number, const Content& content) {
  const auto words = std::bit_cast<KeyWords>(content.key);
  for (std::size_t i = 0; i < kKeyWords; ++i) key[i].store(words[i], std::memory_order_relaxed);
  name_space.store(content.name_space, std::memory_order_relaxed);
  check.store(check_of(slot_number, content.key, content.name_space) ^ std::uint64_t{content.stamp}
                                                                           << kCheckBits,
              std::memory_order_relaxed);
}

std::optional<SlotKey::Content> SlotKey::load(std::uint64_t slot_number) const {
  KeyWords words;
  for (std::size_t i = 0; i < kKeyWords; ++i) words[i] = key[i].load(std::memory_order_relaxed);
  Content found{std::bit_cast<BlockKey>(words), name_space.load(std::memory_order_relaxed)};
  const std::uint64_t difference =
      check.load(std::memory_order_relaxed) ^ check_of(slot_number, found.key, found.name_space);
  if ((difference & kCheckMask) != 0) return std::nullopt;
  if (found.key.hash_bytes == 0 || found.key.hash_bytes > BlockKey::kMaxHashBytes) {
    return std::nullopt;
  }
  found.stamp = static_cast<std::uint32_t>(difference >> kCheckBits);
  return found;
}

TierPlaces tier_places(const TierShape& shape, std::uint64_t page_bytes) {
  const std::uint64_t num_slots = std::uint64_t{shape.num_chunks} * shape.max_chunk_slots;
  // The metadata are far smaller than the other half, which this leaves for them.
  constexpr std::uint64_t kMostArenaBytes = std::uint64_t{1} << 62U;
  if (num_slots == 0 || num_slots >= HintIndex::kMaxSlots || shape.chunk_bytes == 0 ||
      shape.chunk_bytes % page_bytes != 0 || shape.num_ranks == 0 ||
      shape.num_ranks > kMaxTierRanks ||
      shape.chunk_bytes > kMostArenaBytes / shape.num_chunks / shape.num_ranks) {
    throw ConfigError(
        "a shared tier of " + std::to_string(shape.num_chunks) + " chunks of " +
        std::to_string(shape.chunk_bytes) + " bytes (whole pages of " + std::to_string(page_bytes) +
        ") with " + std::to_string(shape.max_chunk_slots) + " slots at most on " +
        std::to_string(shape.num_ranks) + " ranks (1 to " + std::to_string(kMaxTierRanks) +
        ") is not possible: every figure must be at least 1, " +
        "with fewer than 2^32 slots; choose another size");
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
  // A rank maps its own tags, in whole pages of the file.
  places.tags = rounded_up(end, page_bytes);
  places.rank_tag_bytes = rounded_up(num_slots * kTagBytes, page_bytes);
  places.arenas = places.tags + places.rank_tag_bytes * shape.num_ranks;
  places.end = places.arenas + shape.num_chunks * shape.chunk_bytes * shape.num_ranks;
  return places;
}

}  // namespace kvferry::cpu_tier
