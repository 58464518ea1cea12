// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/hashed_lists.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>
#include <bit>

namespace kvferry::cpu_tier {

HashedLists::HashedLists(std::uint32_t max_entries)
    : max_entries_(max_entries),
      entries_(std::size_t{max_entries} + kNumLists),
      chains_(std::bit_ceil(std::max<std::size_t>(2, max_entries)), kNone),
      chain_shift_(static_cast<std::uint32_t>(32 - std::countr_zero(chains_.size()))) {
  clear();
}

void HashedLists::clear() {
  std::fill(chains_.begin(), chains_.end(), kNone);
  for (std::uint32_t list = 0; list < kNumLists; ++list) {
    entries_[max_entries_ + list].colder = max_entries_ + list;
    entries_[max_entries_ + list].hotter = max_entries_ + list;
  }
  free_ = kNone;
  num_used_ = 0;
  sizes_ = {};
}

std::uint32_t HashedLists::find(std::uint32_t hash) const {
  std::uint32_t entry = chains_[chain(hash)];
  while (entry != kNone && entries_[entry].hash != hash) entry = entries_[entry].next;
  return entry;
}

std::uint32_t HashedLists::insert(std::uint32_t hash, std::size_t list, std::uint32_t warmer) {
  std::uint32_t entry = free_;
  if (entry == kNone) {
    KVFERRY_CHECK(num_used_ < max_entries_, "HashedLists is full");
    entry = num_used_++;
  } else {
    free_ = entries_[entry].next;
  }
  std::uint32_t& head = chains_[chain(hash)];
  entries_[entry] = Entry{};
  entries_[entry].hash = hash;
  entries_[entry].next = head;
  head = entry;
  link(entry, list, warmer == kNone ? this->head(list) : warmer);
  return entry;
}

void HashedLists::make_hottest(std::uint32_t entry, std::size_t list) {
  unlink(entry);
  link(entry, list, head(list));
}

void HashedLists::erase(std::uint32_t entry) {
  unlink(entry);
  std::uint32_t* place = &chains_[chain(entries_[entry].hash)];
  while (*place != entry) place = &entries_[*place].next;
  *place = entries_[entry].next;
  entries_[entry].next = free_;
  free_ = entry;
}

void HashedLists::link(std::uint32_t entry, std::size_t list, std::uint32_t warmer) {
  Entry& linked = entries_[entry];
  linked.list = static_cast<std::uint8_t>(list);
  linked.hotter = warmer;
  linked.colder = entries_[warmer].colder;
  entries_[linked.colder].hotter = entry;
  entries_[warmer].colder = entry;
  ++sizes_[list];
}

void HashedLists::unlink(std::uint32_t entry) {
  const Entry& linked = entries_[entry];
  entries_[linked.colder].hotter = linked.hotter;
  entries_[linked.hotter].colder = linked.colder;
  --sizes_[linked.list];
}

}  // namespace kvferry::cpu_tier
