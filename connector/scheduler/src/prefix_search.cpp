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
    : tiers_(tiers), groups_(groups), block_tokens_(block_tokens) {}

LookupAnswer PrefixSearch::find(const Request& request, std::uint32_t num_local,
                                std::uint32_t limit, LookupAnswer known) const {
  LookupAnswer answer;
  answer.valid = true;
  answer.eviction_epoch = tiers_.eviction_epoch();
  answer.num_local_blocks = num_local;
  answer.num_limit_blocks = limit;
  answer.hits.resize(groups_.size());
  known.hits.resize(groups_.size());
  std::uint32_t length = limit > num_local ? limit - num_local : 0;
  for (std::size_t group = 0; group < groups_.size() && length > 0; ++group) {
    if (!needs_all(group)) continue;
    answer.hits[group] = tier_of(group).lookup_prefix(
        std::span(request.keys[group]).subspan(num_local, length), std::move(known.hits[group]));
    length = static_cast<std::uint32_t>(answer.hits[group].size());
  }
  // A shorter prefix can move what another group needs onto blocks that are missing.
  for (std::uint32_t before = length + 1; length > 0 && length < before;) {
    before = length;
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      if (!needs_all(group)) length = shorten(request, group, num_local, length);
    }
  }
  answer.num_blocks = length;
  for (std::size_t group = 0; group < groups_.size() && length > 0; ++group) {
    if (!needs_all(group)) answer.hits[group] = needed(request, group, num_local, length);
  }
  return answer;
}

std::uint32_t PrefixSearch::shorten(const Request& request, std::size_t group,
                                    std::uint32_t num_local, std::uint32_t length) const {
  const std::uint32_t first = first_needed(group, num_local, length);
  if (needed(request, group, num_local, length).size() == length - first) return length;
  std::vector<KeyState> states(length);
  tier_of(group).lookup(std::span(request.keys[group]).subspan(num_local, length), states);
  std::uint32_t end = length;
  for (std::uint32_t at = length; at > first_needed(group, num_local, end);) {
    --at;
    if (states[at] != KeyState::kReadable) end = at;
  }
  return end;
}

PrefixHit PrefixSearch::needed(const Request& request, std::size_t group, std::uint32_t num_local,
                               std::uint32_t length) const {
  const std::uint32_t first = first_needed(group, num_local, length);
  return tier_of(group).lookup_prefix(
      std::span(request.keys[group]).subspan(num_local + first, length - first));
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
  const std::uint32_t skipped = first_needed(group, first, count);
  const PrefixHit* hit = &request.answer.hits[group];
  PrefixHit moved;
  if (!needs_all(group) && count < request.answer.num_blocks) {
    // The engine takes less than it was offered: the window ends elsewhere.
    moved = needed(request, group, first, count);
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
    if (is_null(group, blocks[i])) {
      // A window may be needed in part only; what follows a state that goes nowhere is wrong.
      if (i >= skipped && groups_[group].reach.is_state()) fits = false;
      continue;
    }
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
    hit.slots.resize(request.num_awaited - first_needed(group, 0, request.num_awaited));
    tier_of(group).await(hit);
  }
}

void PrefixSearch::end_await(Request& request) const {
  const std::uint32_t length = std::exchange(request.num_awaited, 0);
  if (length == 0) return;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const std::uint32_t first = first_needed(group, 0, length);
    tier_of(group).end_await(std::span(request.keys[group]).subspan(first, length - first));
  }
}

}  // namespace kvferry::connector
