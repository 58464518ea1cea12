// SPDX-License-Identifier: Apache-2.0
// Clients' promises about blocks: which blocks stay when their turn to leave comes, and which leave
// early.
#include "slot_promises.hpp"

#include "batches.hpp"
#include "slot_class.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {

void SlotPromises::promise(std::span<const BlockKey> keys) {
  PromiseLedger& promises = of_.policy_.promises();
  SlotBatch batch;
  for (std::size_t first = 0; first < keys.size(); first += kBatch) {
    const std::size_t count = std::min(kBatch, keys.size() - first);
    const std::span<SlotId> slots = std::span(batch).first(count);
    of_.index_.find(keys.subspan(first, count), slots);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint8_t depth = PromiseLedger::depth_of(first + i);
      promises.promise(keys[first + i].mixed(), depth);
      if (slots[i] != BlockIndex::kNoSlot && of_.table_.readable(slots[i])) {
        of_.table_.promise(slots[i], depth);
      }
    }
  }
  of_.dcheck_conserved();
}

void SlotPromises::end(std::span<const BlockKey> keys) {
  PromiseLedger& promises = of_.policy_.promises();
  for (const BlockKey& key : keys) {
    if (!promises.end(key.mixed())) continue;
    SlotId slot;
    of_.index_.find({&key, 1}, {&slot, 1});
    if (slot != BlockIndex::kNoSlot && of_.table_.readable(slot)) of_.table_.promise(slot, 0);
  }
  of_.dcheck_conserved();
}

std::uint32_t SlotPromises::leave_early(std::span<const BlockKey> keys) {
  PromiseLedger& promises = of_.policy_.promises();
  const SlotLists& lists = of_.table_.lists();
  std::uint32_t count = 0;
  if (!of_.policy_.believes()) return 0;
  // The tail of a prompt goes first, because the rest of the prompt is still useful.
  for (std::size_t i = keys.size(); i-- > 0;) {
    if (promises.room_for_early(lists.num_stays(), lists.num_leaving_early()) == 0) break;
    SlotId slot;
    of_.index_.find(keys.subspan(i, 1), {&slot, 1});
    if (slot == BlockIndex::kNoSlot || of_.table_.state(slot) != SlotState::kEvictable) continue;
    const SlotRecord& record = lists[slot];
    if (!lists.is_in_turn(record) || record.promise != 0) continue;
    promises.begin_use();
    of_.table_.promise(slot, SlotRecord::kLeavesEarly);
    ++count;
  }
  of_.dcheck_conserved();
  return count;
}

void SlotClass::count_won(std::span<const SlotId> slots) {
  if (table_.lists().num_stays() == 0) return;
  const auto is_owed = [this](SlotId slot) { return table_.lists().is_owed_to_stay(slot); };
  const auto first = std::find_if(slots.begin(), slots.end(), is_owed);
  policy_.promises().won(static_cast<std::uint32_t>(slots.end() - first));
}

void SlotClass::mark_promised(std::span<const SlotId> slots) {
  PromiseLedger& promises = policy_.promises();
  if (promises.is_used()) {
    for (const SlotId slot : slots) promises.stored(index_.key(slot).mixed());
  }
  if (!promises.any()) return;
  for (const SlotId slot : slots) {
    const std::uint8_t depth = promises.depth(index_.key(slot).mixed());
    if (depth != 0) table_.promise(slot, depth);
  }
}

void SlotClass::evict_in_turn(std::span<SlotId> victims) {
  PromiseLedger& promises = policy_.promises();
  for (SlotId& victim : victims) {
    const VictimRule rule = policy_.victims();
    victim = table_.choose_victim(rule);
    const std::uint64_t hash = index_.key(victim).mixed();
    const SlotLists& lists = table_.lists();
    const bool is_early = lists[victim].promise == SlotRecord::kLeavesEarly;
    const bool is_owed = lists.is_owed_to_stay(victim);
    const std::uint32_t turns_stayed =
        lists[victim].stays ? lists.num_turns() - lists[victim].stamp : 0;
    table_.evict({&victim, 1}, rule);
    if (is_owed) continue;
    if (is_early) {
      promises.left_early(hash, lists.num_turns());
    } else {
      const std::uint32_t num_turns = lists.num_turns();
      promises.left_in_turn(hash, num_turns - turns_stayed, num_turns, lists.num_stays());
    }
  }
}

}  // namespace kvferry::cpu_tier
