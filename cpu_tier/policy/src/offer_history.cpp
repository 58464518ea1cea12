// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/offer_history.hpp"

#include "kvferry/cpu_tier/policy/policy_rule.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint32_t kCountBits = 3;
constexpr std::uint32_t kCountMask = (1U << kCountBits) - 1;
static_assert(kCountMask == kMaxHeat);

/// Never 0, because 0 marks an empty entry.
std::uint32_t mark_of(std::uint64_t hash) {
  const std::uint32_t mark = static_cast<std::uint32_t>(hash) & ~kCountMask;
  return mark == 0 ? kCountMask + 1 : mark;
}

}  // namespace

OfferHistory::OfferHistory(std::uint64_t max_entries)
    : buckets_(std::max<std::size_t>(1, (max_entries + kWays - 1) / kWays)) {}

/// The position of `mark`, or kWays. Without an early exit it is a few vector instructions.
std::size_t OfferHistory::Bucket::find(std::uint32_t mark) const {
  std::uint32_t found = 0;
  for (std::uint32_t i = 0; i < kWays; ++i) {
    found |= (entries[i] & ~kCountMask) == mark ? i + 1 : 0;
  }
  return found == 0 ? kWays : found - 1;
}

std::uint32_t OfferHistory::count_offer(std::uint64_t hash, std::uint32_t at_least) {
  Bucket& known = buckets_[bucket(hash)];
  const std::uint32_t mark = mark_of(hash);
  const std::size_t at = known.find(mark);
  if (at == kWays) {
    known.entries[known.oldest] = mark | at_least;
    known.oldest = known.oldest + 1 == kWays ? 0 : known.oldest + 1;
    return at_least;
  }
  std::uint32_t& entry = known.entries[at];
  const std::uint32_t count = std::max(std::min((entry & kCountMask) + 1, kMaxHeat), at_least);
  entry = mark | count;
  return count;
}

std::uint32_t OfferHistory::num_offers(std::uint64_t hash) const {
  const Bucket& known = buckets_[bucket(hash)];
  const std::size_t at = known.find(mark_of(hash));
  return at == kWays ? 0 : known.entries[at] & kCountMask;
}

void OfferHistory::clear() { std::fill(buckets_.begin(), buckets_.end(), Bucket{}); }

}  // namespace kvferry::cpu_tier
