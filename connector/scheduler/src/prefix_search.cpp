// SPDX-License-Identifier: Apache-2.0
#include "prefix_search.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {

using cpu_tier::BlockKey;
using cpu_tier::KeyState;
using cpu_tier::PrefixHit;

LookupAnswer PrefixSearch::find(const GroupKeys& keys, std::uint32_t num_local, std::uint32_t limit,
                                LookupAnswer known) const {
  LookupAnswer answer;
  answer.eviction_epoch = tier_.eviction_epoch();
  answer.num_local_blocks = num_local;
  answer.num_limit_blocks = limit;
  answer.hits.resize(groups_.size());
  known.hits.resize(groups_.size());
  std::uint32_t length = limit > num_local ? limit - num_local : 0;
  for (const GroupId group : groups_.ids()) {
    if (length == 0) break;
    if (!groups_.needs_all(group)) continue;
    answer.hits[group.value()] = tier_.lookup_prefix(
        groups_.class_of(group), std::span(keys[group.value()]).subspan(num_local, length),
        std::move(known.hits[group.value()]));
    length = static_cast<std::uint32_t>(answer.hits[group.value()].size());
  }
  // A shorter prefix can move what another group needs onto blocks that are missing.
  for (std::uint32_t before = length + 1; length > 0 && length < before;) {
    before = length;
    for (const GroupId group : groups_.ids()) {
      if (!groups_.needs_all(group)) length = shorten(keys, group, num_local, length);
    }
  }
  answer.num_blocks = length;
  for (const GroupId group : groups_.ids()) {
    if (length == 0) break;
    if (!groups_.needs_all(group))
      answer.hits[group.value()] = needed(keys, group, num_local, length);
  }
  return answer;
}

std::uint32_t PrefixSearch::shorten(const GroupKeys& keys, GroupId group, std::uint32_t num_local,
                                    std::uint32_t length) const {
  const std::uint32_t first = groups_.first_needed(group, num_local, length);
  if (needed(keys, group, num_local, length).size() == length - first) return length;
  std::vector<KeyState> states(length);
  tier_.lookup(groups_.class_of(group), std::span(keys[group.value()]).subspan(num_local, length),
               states);
  std::uint32_t end = length;
  for (std::uint32_t at = length; at > groups_.first_needed(group, num_local, end);) {
    --at;
    if (states[at] != KeyState::kReadable) end = at;
  }
  return end;
}

PrefixHit PrefixSearch::needed(const GroupKeys& keys, GroupId group, std::uint32_t num_local,
                               std::uint32_t length) const {
  const std::uint32_t first = groups_.first_needed(group, num_local, length);
  return tier_.lookup_prefix(
      groups_.class_of(group),
      std::span(keys[group.value()]).subspan(num_local + first, length - first));
}

std::optional<LeasedPrefix> PrefixSearch::lease(
    const GroupKeys& keys, const LookupAnswer& answer, std::uint32_t count,
    std::span<const std::span<const BlockId>> tables) const {
  if (count > answer.num_blocks || tables.size() != groups_.size()) {
    return std::nullopt;
  }
  LeasedPrefix leased;
  for (const GroupId group : groups_.ids()) {
    if (lease_group(keys, answer, group, count, tables[group.value()], leased)) continue;
    for (LeasedBlocks& part : leased) {
      tier_.release(std::move(part.lease));
    }
    return std::nullopt;
  }
  return leased;
}

bool PrefixSearch::lease_group(const GroupKeys& keys, const LookupAnswer& answer, GroupId group,
                               std::uint32_t count, std::span<const BlockId> table,
                               LeasedPrefix& to) const {
  const std::uint32_t first = answer.num_local_blocks;
  if (first + count > table.size()) return false;
  const std::span<const BlockId> blocks = table.subspan(first, count);
  const std::uint32_t skipped = groups_.first_needed(group, first, count);
  const PrefixHit* hit = &answer.hits[group.value()];
  PrefixHit moved;
  if (!groups_.needs_all(group) && count < answer.num_blocks) {
    // The engine takes less than it was offered: the window ends elsewhere.
    moved = needed(keys, group, first, count);
    hit = &moved;
  }
  if (hit->size() < count - skipped) return false;
  auto leased = tier_.lease(*hit, count - skipped);
  if (!leased.ok()) return false;
  cpu_tier::Lease lease = std::move(leased).value();
  const SlabClassId slab_class = groups_.class_of(group);
  const auto same = std::find_if(to.begin(), to.end(), [slab_class](const LeasedBlocks& part) {
    return part.to.slab_class == slab_class;
  });
  LeasedBlocks& part =
      same != to.end() ? *same : to.emplace_back(LeasedBlocks{{slab_class, {}}, {}});
  bool fits = true;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (groups_.is_null(group, blocks[i])) {
      if (i >= skipped && !groups_.may_leave_out(group)) fits = false;
      continue;
    }
    // A block that the engine expects to be filled and that nothing fills.
    if (i < skipped) fits = false;
    if (i >= skipped) part.to.blocks.push_back({blocks[i], lease.slots()[i - skipped]});
  }
  part.lease.merge(std::move(lease));
  return fits;
}

LookupAnswer PrefixSearch::await(const GroupKeys& keys) const {
  LookupAnswer answer = find(keys, 0, static_cast<std::uint32_t>(keys.front().size()));
  for (const GroupId group : groups_.ids()) {
    if (answer.num_blocks == 0) break;
    PrefixHit& hit = answer.hits[group.value()];
    // Another group may have made the hit shorter than what this one found.
    hit.slots.resize(answer.num_blocks - groups_.first_needed(group, 0, answer.num_blocks));
    tier_.await(hit);
  }
  return answer;
}

void PrefixSearch::end_await(const GroupKeys& keys, std::uint32_t num_blocks) const {
  if (num_blocks == 0) return;
  for (const GroupId group : groups_.ids()) {
    const std::uint32_t first = groups_.first_needed(group, 0, num_blocks);
    tier_.end_await(groups_.class_of(group),
                    std::span(keys[group.value()]).subspan(first, num_blocks - first));
  }
}

}  // namespace kvferry::connector
