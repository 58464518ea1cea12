// SPDX-License-Identifier: Apache-2.0
#include "prefix_search.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {

using cpu_tier::BlockKey;
using cpu_tier::KeyState;
using cpu_tier::PrefixHit;

LookupAnswer PrefixSearch::find(const GroupKeys& keys, std::uint32_t first, std::uint32_t limit,
                                LookupAnswer known) const {
  LookupAnswer answer;
  answer.eviction_epoch = tier_.eviction_epoch();
  answer.first = first;
  answer.limit = limit;
  answer.hits.resize(groups_.size());
  known.hits.resize(groups_.size());
  std::uint32_t end = groups_.align(limit);
  for (const GroupId group : groups_.ids()) {
    if (end <= first) break;
    if (!groups_.needs_all(group)) continue;
    PrefixHit& hit = answer.hits[group.value()];
    const BlockGroups::Range blocks = groups_.needed(group, first, end);
    hit = tier_.lookup_prefix(groups_.class_of(group),
                              std::span(keys[group.value()]).subspan(blocks.first, blocks.size()),
                              std::move(known.hits[group.value()]));
    const auto num_found = static_cast<std::uint32_t>(hit.size());
    if (num_found < blocks.size()) {
      answer.missing = {group, blocks.first + num_found};
      end = groups_.align((blocks.first + num_found) * groups_.block_length(group));
    }
    answer.full_end = end;
  }
  // With a shorter prefix, another group may need blocks that are missing.
  for (std::uint32_t before = end + 1; end > first && end < before;) {
    before = end;
    for (const GroupId group : groups_.ids()) {
      if (groups_.needs_all(group) || end <= first) continue;
      end = shorten(keys, group, first, end, answer.missing);
    }
  }
  answer.end = std::max(first, end);
  for (const GroupId group : groups_.ids()) {
    if (!answer.is_hit()) break;
    if (groups_.needs_all(group)) continue;
    answer.hits[group.value()] = look_up(keys, group, groups_.needed(group, first, end));
  }
  return answer;
}

std::uint32_t PrefixSearch::shorten(const GroupKeys& keys, GroupId group, std::uint32_t first,
                                    std::uint32_t end,
                                    std::optional<LookupAnswer::Missing>& missing) const {
  const BlockGroups::Range needed = groups_.needed(group, first, end);
  if (look_up(keys, group, needed).size() == needed.size()) return end;
  const std::uint32_t begin = groups_.num_complete(group, first);
  std::vector<KeyState> states(needed.last - begin);
  tier_.lookup(groups_.class_of(group),
               std::span(keys[group.value()]).subspan(begin, states.size()), states);
  for (std::uint32_t block = needed.last;
       end > first && block > groups_.needed(group, first, end).first;) {
    --block;
    if (states[block - begin] == KeyState::kReadable) continue;
    missing = {group, block};
    end = groups_.align(block * groups_.block_length(group));
    block = std::min(block, groups_.num_begun(group, end));
  }
  return end;
}

PrefixHit PrefixSearch::look_up(const GroupKeys& keys, GroupId group,
                                BlockGroups::Range blocks) const {
  return tier_.lookup_prefix(groups_.class_of(group),
                             std::span(keys[group.value()]).subspan(blocks.first, blocks.size()));
}

std::optional<LeasedPrefix> PrefixSearch::lease(
    const GroupKeys& keys, const LookupAnswer& answer, std::uint32_t end,
    std::span<const std::span<const BlockId>> tables) const {
  if (end > answer.end || tables.size() != groups_.size()) {
    return std::nullopt;
  }
  LeasedPrefix leased;
  for (const GroupId group : groups_.ids()) {
    if (lease_group(keys, answer, group, end, tables[group.value()], leased)) continue;
    for (LeasedBlocks& part : leased) {
      tier_.release(std::move(part.lease));
    }
    return std::nullopt;
  }
  return leased;
}

bool PrefixSearch::lease_group(const GroupKeys& keys, const LookupAnswer& answer, GroupId group,
                               std::uint32_t end, std::span<const BlockId> table,
                               LeasedPrefix& to) const {
  const BlockGroups::Range needed = groups_.needed(group, answer.first, end);
  if (needed.last > table.size()) return false;
  const PrefixHit* hit = &answer.hits[group.value()];
  PrefixHit moved;
  if (!groups_.needs_all(group) && end < answer.end) {
    // The engine takes less than it was offered, so the window ends elsewhere.
    moved = look_up(keys, group, needed);
    hit = &moved;
  }
  if (hit->size() < needed.size()) return false;
  auto leased = tier_.lease(*hit, needed.size());
  if (!leased.ok()) return false;
  cpu_tier::Lease lease = std::move(leased).value();
  const SlabClassId slab_class = groups_.class_of(group);
  const auto same = std::find_if(to.begin(), to.end(), [slab_class](const LeasedBlocks& part) {
    return part.to.slab_class == slab_class;
  });
  LeasedBlocks& part =
      same != to.end() ? *same : to.emplace_back(LeasedBlocks{{slab_class, {}}, {}});
  bool fits = true;
  for (std::uint32_t i = groups_.num_complete(group, answer.first); i < needed.last; ++i) {
    const bool is_needed = i >= needed.first;
    if (groups_.is_null(group, table[i])) {
      if (is_needed && !groups_.may_leave_out(group)) fits = false;
      continue;
    }
    // The engine expects this block to be filled, but nothing fills it.
    if (!is_needed) fits = false;
    if (!is_needed) continue;
    part.to.blocks.push_back(
        {table[i], lease.slots()[i - needed.first], keys[group.value()][i].mixed()});
  }
  part.lease.merge(std::move(lease));
  return fits;
}

LookupAnswer PrefixSearch::await(const GroupKeys& keys, std::uint32_t num_hashes) const {
  LookupAnswer answer = find(keys, 0, num_hashes);
  for (const GroupId group : groups_.ids()) {
    if (!answer.is_hit()) break;
    PrefixHit& hit = answer.hits[group.value()];
    // Another group may have made the hit shorter than what this group found.
    hit.slots.resize(groups_.needed(group, 0, answer.end).size());
    tier_.await(hit);
  }
  return answer;
}

void PrefixSearch::end_await(const GroupKeys& keys, std::uint32_t end) const {
  // The request may have fewer keys by now.
  end = groups_.align(end);
  if (end == 0) return;
  for (const GroupId group : groups_.ids()) {
    const BlockGroups::Range blocks = groups_.needed(group, 0, end);
    tier_.end_await(groups_.class_of(group),
                    std::span(keys[group.value()]).subspan(blocks.first, blocks.size()));
  }
}

}  // namespace kvferry::connector
