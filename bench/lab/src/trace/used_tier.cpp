// SPDX-License-Identifier: Apache-2.0
#include "trace/used_tier.hpp"

#include "kvferry/base/mixed_bits.hpp"

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

namespace kvferry::bench::trace {

using cpu_tier::BlockKey;
using cpu_tier::OfferAnswer;

BlockKey key_of(std::uint64_t block) {
  std::uint64_t words[2];
  for (std::uint64_t i = 0; i < 2; ++i) {
    words[i] = mixed_bits((2 * block + i + 1) * 0x9e3779b97f4a7c15ULL);
  }
  std::array<std::byte, sizeof words> hash;
  std::memcpy(hash.data(), words, sizeof words);
  return BlockKey::make(hash, GroupId(0));
}

UsedTier::UsedTier(std::uint32_t num_blocks, const cpu_tier::TierOptions& options)
    : tier_(num_blocks, std::array{1U}, options) {
  tier_.grow_to(num_blocks);
}

void UsedTier::load(const cpu_tier::PrefixHit& hit, std::size_t count) {
  if (count > 0) tier_.release(std::move(tier_.lease(hit, count)).value());
}

std::uint64_t UsedTier::store(std::span<const BlockKey> keys) {
  answers_.resize(keys.size());
  tier_.offer(kOnly, keys, answers_);
  wanted_.clear();
  std::uint64_t num_held = 0;
  std::optional<BlockKey> predecessor;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (answers_[i] == OfferAnswer::kHeld) ++num_held;
    if (answers_[i] != OfferAnswer::kStore) continue;
    if (wanted_.empty() && i > 0) predecessor = keys[i - 1];
    wanted_.push_back(keys[i]);
  }
  if (wanted_.empty()) return num_held;
  auto reserved = tier_.reserve(kOnly, wanted_);
  if (!reserved.ok()) {  // The request is larger than the tier.
    reserved = tier_.reserve(kOnly, std::span(wanted_).first(reserved.otherwise().num_available));
  }
  if (reserved.ok()) tier_.commit(std::move(reserved).value().hand_over(), predecessor);
  return num_held;
}

}  // namespace kvferry::bench::trace
