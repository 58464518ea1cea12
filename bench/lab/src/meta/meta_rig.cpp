// SPDX-License-Identifier: Apache-2.0
#include "meta/meta_rig.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/cpu_tier/peers/tier_peers.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>

namespace kvferry::bench {
namespace {

using cpu_tier::BlockKey;

// With some 20 ns per key a round takes 40 us and more, a hundred times as long as reading the
// clocks.
constexpr std::uint32_t kKeysPerRound = 2048;

std::uint32_t value_of(std::uint64_t number) {
  return static_cast<std::uint32_t>(number % BareTable::kAbsent);
}

std::vector<std::uint32_t> values_of(std::span<const std::uint64_t> numbers) {
  std::vector<std::uint32_t> values(numbers.size());
  std::transform(numbers.begin(), numbers.end(), values.begin(), value_of);
  return values;
}

/// The slots of a chunk, for small blocks: the tier divides its smallest chunks like this.
constexpr std::uint32_t kChunkSlots = 64;
constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 10U;

/// Joins a whole shared tier with room for `num_slots`. Its arena is never touched.
std::unique_ptr<cpu_tier::JoinedTier> join_all(const MetaShape& shape, std::uint32_t num_slots) {
  if (shape.tenancy == Tenancy::kPrivate) return nullptr;
  const std::uint64_t num_chunks = (std::uint64_t{num_slots} + kChunkSlots - 1) / kChunkSlots;
  auto joined =
      cpu_tier::JoinedTier::join({.path = "/dev/shm/kvferry-lab-" + std::to_string(::getpid()),
                                  .capacity_bytes = num_chunks * kChunkBytes,
                                  .chunk_bytes = kChunkBytes},
                                 {.name = "bench", .name_space = shape.seed});
  return joined;
}

std::uint32_t slots_per_chunk(const MetaShape& shape) {
  return shape.tenancy == Tenancy::kPrivate ? 1 : kChunkSlots;
}

std::uint32_t num_chunks(const MetaShape& shape, std::uint32_t num_slots) {
  return (num_slots + slots_per_chunk(shape) - 1) / slots_per_chunk(shape);
}

}  // namespace

BlockKey key_of(std::uint64_t seed, std::uint64_t number) {
  std::array<std::uint64_t, 4> words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = mixed_bits(seed + 4 * number + i);
  return BlockKey::make(std::as_bytes(std::span(words)), GroupId(0));
}

std::uint32_t MetaShape::num_calls() const {
  return std::clamp<std::uint32_t>(kKeysPerRound / batch, 1, num_resident / batch);
}

MetaRig::MetaRig(const MetaShape& shape, std::uint32_t num_free)
    : shape_(shape),
      joined_(join_all(shape, shape.num_resident + num_free)),
      tier_(num_chunks(shape, shape.num_resident + num_free), std::array{slots_per_chunk(shape)},
            shape.policy, cpu_tier::peers_in(joined_ ? &joined_->directory() : nullptr)),
      bare_(shape.num_resident + shape.keys_per_round()),
      random_(shape.seed),
      places_(shape.num_resident) {
  tier_.grow_to(num_chunks(shape, shape.num_resident + num_free));
  std::iota(places_.begin(), places_.end(), 0U);
  std::shuffle(places_.begin(), places_.end(), random_);
  fill();
}

void MetaRig::fill() {
  std::vector<std::pair<std::uint64_t, cpu_tier::WritableSlots>> prefixes;
  while (next_number_ < shape_.num_resident) {
    std::vector<std::uint64_t> numbers(
        std::min<std::uint64_t>(shape_.prefix, shape_.num_resident - next_number_));
    std::iota(numbers.begin(), numbers.end(), next_number_);
    const MetaKeys blocks = with_keys(std::move(numbers));
    auto reserved = tier_.reserve(kOnly, blocks.keys);
    KVFERRY_CHECK(reserved.ok(), "a fresh tier has no room");
    prefixes.emplace_back(next_number_, std::move(reserved).value().hand_over());
    bare_.insert(blocks.keys, values_of(blocks.numbers));
    next_number_ += blocks.numbers.size();
  }
  std::shuffle(prefixes.begin(), prefixes.end(), random_);
  for (auto& [first, slots] : prefixes) {
    for (std::uint64_t i = slots.size(); i-- > 0;) order_.push_back(first + i);
    tier_.commit(std::move(slots));
  }
  // A keeper does this ten times a second. Here nobody else does it.
  tier_.tend(std::chrono::steady_clock::now());
}

MetaKeys MetaRig::with_keys(std::vector<std::uint64_t> numbers) const {
  MetaKeys blocks{std::move(numbers), {}};
  blocks.keys.reserve(blocks.numbers.size());
  for (const std::uint64_t number : blocks.numbers) {
    blocks.keys.push_back(key_of(shape_.seed, number));
  }
  return blocks;
}

MetaKeys MetaRig::draw_resident() {
  if (next_place_ + shape_.keys_per_round() > places_.size()) next_place_ = 0;
  std::vector<std::uint64_t> numbers(shape_.keys_per_round());
  for (std::uint64_t& number : numbers) number = order_[places_[next_place_++]];
  return with_keys(std::move(numbers));
}

MetaKeys MetaRig::draw_new() {
  std::vector<std::uint64_t> numbers(shape_.keys_per_round());
  std::iota(numbers.begin(), numbers.end(), next_number_);
  next_number_ += numbers.size();
  return with_keys(std::move(numbers));
}

MetaKeys MetaRig::oldest() const {
  return with_keys({order_.begin(), order_.begin() + shape_.keys_per_round()});
}

void MetaRig::replace_oldest(const MetaKeys& stored) {
  order_.erase(order_.begin(), order_.begin() + shape_.keys_per_round());
  // The blocks of a call are a prefix: its end is evicted first.
  for (std::size_t first = 0; first < stored.numbers.size(); first += shape_.batch) {
    for (std::size_t i = shape_.batch; i-- > 0;) order_.push_back(stored.numbers[first + i]);
  }
}

}  // namespace kvferry::bench
