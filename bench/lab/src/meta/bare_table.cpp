// SPDX-License-Identifier: Apache-2.0
#include "meta/bare_table.hpp"

#include <algorithm>
#include <bit>

namespace kvferry::bench {
namespace {

using cpu_tier::BlockKey;

// The tier's own index prefetches as far ahead.
constexpr std::size_t kAhead = 16;

}  // namespace

BareTable::BareTable(std::uint32_t max_keys)
    : entries_(std::bit_ceil(std::max<std::size_t>(16, std::size_t{max_keys} * 2))),
      mask_(entries_.size() - 1),
      home_shift_(static_cast<unsigned>(64 - std::countr_zero(entries_.size()))) {}

std::size_t BareTable::position_of(const BlockKey& key) const {
  std::size_t position = home(key);
  while (entries_[position].value != kAbsent && !(entries_[position].key == key)) {
    position = (position + 1) & mask_;
  }
  return position;
}

template <class Work>
void BareTable::for_each(std::span<const BlockKey> keys, const Work& work) const {
  for (std::size_t step = 0; step < keys.size() + kAhead; ++step) {
    if (step < keys.size()) {
      const auto* entry = reinterpret_cast<const char*>(&entries_[home(keys[step])]);
      __builtin_prefetch(entry);
      __builtin_prefetch(entry + sizeof(Entry) - 1);  // An entry may straddle two cache lines.
    }
    if (step >= kAhead) work(step - kAhead);
  }
}

void BareTable::find(std::span<const BlockKey> keys, std::span<std::uint32_t> values) const {
  for_each(keys, [&](std::size_t i) { values[i] = entries_[position_of(keys[i])].value; });
}

void BareTable::insert(std::span<const BlockKey> keys, std::span<const std::uint32_t> values) {
  for_each(keys, [&](std::size_t i) { entries_[position_of(keys[i])] = {keys[i], values[i]}; });
}

void BareTable::erase(std::span<const BlockKey> keys) {
  for_each(keys, [&](std::size_t i) { erase_at(position_of(keys[i])); });
}

void BareTable::erase_at(std::size_t position) {
  std::size_t hole = position;
  for (std::size_t next = (hole + 1) & mask_; entries_[next].value != kAbsent;
       next = (next + 1) & mask_) {
    // An entry fills the hole unless its home lies after the hole (cyclically).
    if (((next - home(entries_[next].key)) & mask_) >= ((next - hole) & mask_)) {
      entries_[hole] = entries_[next];
      hole = next;
    }
  }
  entries_[hole].value = kAbsent;
}

}  // namespace kvferry::bench
