// SPDX-License-Identifier: Apache-2.0
// ObjectStore: values that are not what was stored.
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/slots/tier_withdrawals.hpp"
#include "kvferry/gpu/tag_sum.hpp"
#include "kvferry/lmcache/object_store.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace kvferry::lmcache {
namespace {

/// The key of a record, for a line of text. A key that does not fit into the record is not printed.
std::string printable_key(const SlotRecord& record) {
  if (record.key_bytes > record.key.size()) {
    return "with a key of " + std::to_string(record.key_bytes) + " bytes";
  }
  std::string text(record.key.data(), record.key_bytes);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

std::string tags_text(std::uint64_t expected, std::uint64_t found) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "with tag %016llx; expected is %016llx",
                static_cast<unsigned long long>(found), static_cast<unsigned long long>(expected));
  return text.data();
}

}  // namespace

std::vector<std::size_t> ObjectStore::withdraw_damaged(const ReadableValues& values,
                                                       std::span<const std::uint64_t> sums) {
  KVFERRY_CHECK(sums.size() == values.places_.size(), "a sum for each key");
  std::vector<std::size_t> damaged;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (values.places_[i] == nullptr) continue;
    const auto& described = values.described_[i];
    const std::uint64_t expected = described.record->tag;
    if (expected == gpu::kNoTag || expected == gpu::tag_of(sums[i], described.identity)) {
      continue;
    }
    damaged.push_back(i);
  }
  if (damaged.empty()) return damaged;
  MutexLock lock(mutex_);
  for (const std::size_t i : damaged) withdraw(values, i, sums[i]);
  return damaged;
}

void ObjectStore::withdraw(const ReadableValues& values, std::size_t number, std::uint64_t sum) {
  const auto& described = values.described_[number];
  const cpu_tier::Lease& lease = values.parts_[described.part];
  const auto withdrawn = cpu_tier::TierWithdrawals(tier_).withdraw(lease, {&described.slot, 1});
  ++num_damaged_;
  if (warnings_.size() >= kMostWarnings) return;
  const SlotRecord& record = *described.record;
  const SlotSize& slots = classes_[lease.slab_class().value()].slots;
  const cpu_tier::SlotPlace place = cpu_tier::place_of(described.slot, slots.num_slots);
  warnings_.push_back("object " + printable_key(record) + " of " +
                      std::to_string(record.value_bytes) + " bytes is not what was stored: slot " +
                      std::to_string(place.index) + " of chunk " +
                      std::to_string(place.chunk.value()) +
                      (withdrawn.front().is_own ? "" : ", which is not this server's,") +
                      " arrived " + tags_text(record.tag, gpu::tag_of(sum, described.identity)) +
                      ". It is a miss, and its slot is not used again");
}

std::vector<std::string> ObjectStore::take_warnings() {
  MutexLock lock(mutex_);
  return std::exchange(warnings_, {});
}

}  // namespace kvferry::lmcache
