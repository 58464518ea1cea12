// SPDX-License-Identifier: Apache-2.0
#include "prefix_search.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {

using cpu_tier::BlockKey;
using cpu_tier::KeyState;
using cpu_tier::PrefixHit;

PrefixSearch::PrefixSearch(ClassTiers& tiers, std::span<const KvGroup> groups,
                           std::uint32_t block_tokens)
    : tiers_(tiers), groups_(groups), block_tokens_(block_tokens) {
  for (const KvGroup& group : groups_) {
    // The next token sees window_tokens - 1 tokens before itself.
    const std::uint32_t seen = group.window_tokens == 0 ? 0 : group.window_tokens - 1;
    window_blocks_.push_back((seen + block_tokens_ - 1) / block_tokens_);
  }
}

LookupAnswer PrefixSearch::find(const Request& request, std::uint32_t num_local,
                                std::uint32_t limit, LookupAnswer known) const {
  LookupAnswer answer;
  answer.valid = true;
  answer.eviction_epoch = tiers_.eviction_epoch();
  answer.num_local_blocks = num_local;
  answer.num_limit_blocks = limit;
  answer.hits.resize(groups_.size());
  known.hits.resize(groups_.size());
  const auto keys_of = [&](std::size_t group, std::uint32_t length) {
    return std::span(request.keys[group]).subspan(num_local, length);
  };
  std::uint32_t length = limit > num_local ? limit - num_local : 0;
  for (std::size_t group = 0; group < groups_.size() && length > 0; ++group) {
    if (is_window(group)) continue;
    answer.hits[group] =
        tier_of(group).lookup_prefix(keys_of(group, length), std::move(known.hits[group]));
    length = static_cast<std::uint32_t>(answer.hits[group].size());
  }
  // A shorter prefix can move another group's window onto blocks that are missing.
  for (std::uint32_t before = length + 1; length > 0 && length < before;) {
    before = length;
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      if (is_window(group)) length = shorten(keys_of(group, length), group, length);
    }
  }
  answer.num_blocks = length;
  for (std::size_t group = 0; group < groups_.size() && length > 0; ++group) {
    if (is_window(group)) answer.hits[group] = needed(keys_of(group, length), group, length);
  }
  return answer;
}

std::uint32_t PrefixSearch::shorten(std::span<const BlockKey> keys, std::size_t group,
                                    std::uint32_t length) const {
  if (needed(keys, group, length).size() == length - first_needed(group, length)) return length;
  std::vector<KeyState> states(length);
  tier_of(group).lookup(keys, states);
  const std::uint32_t window = window_blocks_[group];
  std::uint32_t run = 0;
  for (std::uint32_t at = length; at > 0; --at) {
    run = states[at - 1] == KeyState::kReadable ? run + 1 : 0;
    // The window may reach back into what the engine has itself.
    if (run > 0 && (run >= window || at == 1)) return at - 1 + run;
  }
  return 0;
}

PrefixHit PrefixSearch::needed(std::span<const BlockKey> keys, std::size_t group,
                               std::uint32_t length) const {
  const std::uint32_t first = first_needed(group, length);
  return tier_of(group).lookup_prefix(keys.subspan(first, length - first));
}

std::optional<LeasedPrefix> PrefixSearch::lease(
    const Request& request, std::uint32_t count,
    std::span<const std::span<const BlockId>> tables) const {
  const LookupAnswer& answer = request.answer;
  if (!answer.valid || count > answer.num_blocks || tables.size() != groups_.size()) {
    return std::nullopt;
  }
  LeasedPrefix leased;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (lease_group(request, group, count, tables[group], leased)) continue;
    for (LeasedPrefix::Part& part : leased.parts) {
      tiers_.of(part.slab_class).release(std::move(part.lease));
    }
    return std::nullopt;
  }
  return leased;
}

bool PrefixSearch::lease_group(const Request& request, std::size_t group, std::uint32_t count,
                               std::span<const BlockId> table, LeasedPrefix& to) const {
  const std::uint32_t first = request.answer.num_local_blocks;
  if (first + count > table.size()) return false;
  const std::span<const BlockId> blocks = table.subspan(first, count);
  const std::uint32_t skipped = first_needed(group, count);
  const PrefixHit* hit = &request.answer.hits[group];
  PrefixHit moved;
  if (is_window(group) && count < request.answer.num_blocks) {
    // The engine takes less than it was offered: the window ends elsewhere.
    moved = needed(std::span(request.keys[group]).subspan(first, count), group, count);
    hit = &moved;
  }
  if (hit->size() < count - skipped) return false;
  auto leased = tier_of(group).lease(*hit, count - skipped);
  if (!leased.ok()) return false;
  cpu_tier::Lease lease = std::move(leased).value();
  const SlabClassId slab_class = tiers_.class_of(GroupId(static_cast<std::uint32_t>(group)));
  const auto same = std::find_if(to.parts.begin(), to.parts.end(), [slab_class](const auto& part) {
    return part.slab_class == slab_class;
  });
  LeasedPrefix::Part& part = same != to.parts.end()
                                 ? *same
                                 : to.parts.emplace_back(LeasedPrefix::Part{slab_class, {}, {}});
  bool fits = true;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (is_null(group, blocks[i])) continue;
    // A block that the engine expects to be filled and that nothing fills.
    if (i < skipped) fits = false;
    if (i >= skipped) part.blocks.push_back({blocks[i], lease.slots()[i - skipped]});
  }
  part.lease.merge(std::move(lease));
  return fits;
}

void PrefixSearch::await(Request& request) const {
  // The answer is the first lookup's, too, if nothing is evicted until then.
  request.answer = find(request, 0, static_cast<std::uint32_t>(request.num_keys()), {});
  request.num_awaited = request.answer.num_blocks;
  for (std::size_t group = 0; group < groups_.size() && request.num_awaited > 0; ++group) {
    cpu_tier::PrefixHit& hit = request.answer.hits[group];
    // Another group may have made the hit shorter than what this one found.
    hit.slots.resize(request.num_awaited - first_needed(group, request.num_awaited));
    tier_of(group).await(hit);
  }
}

void PrefixSearch::end_await(Request& request) const {
  const std::uint32_t length = std::exchange(request.num_awaited, 0);
  if (length == 0) return;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const std::uint32_t first = first_needed(group, length);
    tier_of(group).end_await(std::span(request.keys[group]).subspan(first, length - first));
  }
}

std::uint32_t PrefixSearch::first_kept(std::size_t group, std::uint32_t num_computed_tokens) const {
  const std::uint32_t window = groups_[group].window_tokens;
  if (window == 0 || num_computed_tokens < window) return 0;
  return (num_computed_tokens - window + 1) / block_tokens_;
}

}  // namespace kvferry::connector
