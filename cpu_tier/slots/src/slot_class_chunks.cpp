// SPDX-License-Identifier: Apache-2.0
// The slots of one slab class when chunks come and go.
#include "kvferry/base/check.hpp"

#include "batches.hpp"
#include "slot_class.hpp"

#include <algorithm>
#include <array>

namespace kvferry::cpu_tier {
namespace {

/// A simulation of the tier restarts when its size changes, but not with every piece or chunk.
constexpr std::uint32_t kPolicyTolerance = 8;

}  // namespace

void SlotClass::add(SlotRange range) {
  table_.add(range);
  std::array<SlotId, kStep> slots;
  for (std::uint32_t first = range.first; first < range.end;) {
    const auto count = std::min<std::uint32_t>(kStep, range.end - first);
    for (std::uint32_t i = 0; i < count; ++i) slots[i] = SlotId(first + i);
    set_aside_unless_free(std::span(slots).first(count));
    first += count;
  }
  resize_policy();
  dcheck_conserved();
}

bool SlotClass::remove(SlotRange range) {
  if (table_.any_named(range)) return false;
  if (peers_->any_read(range)) {
    keep_warm(range);
    return false;
  }
  const std::uint32_t num_keys_before = index_.size();
  bool all_evicted = true;
  std::array<SlotId, kStep> slots;
  for (std::uint32_t first = range.first; first < range.end;) {
    const auto count = std::min<std::uint32_t>(kStep, range.end - first);
    std::size_t num_readable = 0;
    for (std::uint32_t slot = first + count; slot > first; --slot) {
      if (table_.readable(SlotId(slot - 1))) slots[num_readable++] = SlotId(slot - 1);
    }
    const std::span<SlotId> readable = std::span(slots).first(num_readable);
    const std::span<const SlotId> evicted = readable.first(peers_->evict(readable));
    all_evicted = all_evicted && evicted.size() == readable.size();
    for (const SlotId slot : evicted) table_.forget(slot);
    note(evicted, MoveKind::kChunkGone);
    index_.erase(evicted);
    first += count;
  }
  num_evicted_total_ += num_keys_before - index_.size();
  if (all_evicted) {
    table_.remove(range);
    resize_policy();
  } else {
    keep_warm(range);
  }
  end_forgetting(num_keys_before);
  return all_evicted;
}

void SlotClass::keep_warm(SlotRange range) {
  for (std::uint32_t slot = range.first; slot < range.end; ++slot) {
    if (table_.state(SlotId(slot)) == SlotState::kEvictable) table_.touch(SlotId(slot));
  }
}

bool SlotClass::adopt(SlotRange range) {
  // Guests among the slots are released. If their owner has forgotten one meanwhile, it can have
  // another content from now on, so hits that have it end here.
  ++eviction_epoch_;
  if (!peers_->let_go(range)) return false;
  table_.add(range);
  // It goes from the last to the first: as far as prefixes lie in order, they leave from their
  // tails.
  std::array<std::optional<BlockKey>, kStep> keys;
  std::array<SlotId, kStep> unused;
  for (std::uint32_t end = range.end; end > range.first;) {
    const auto count = std::min<std::uint32_t>(kStep, end - range.first);
    end -= count;
    peers_->read_keys(SlotId(end), std::span(keys).first(count));
    std::size_t num_unused = 0;
    for (std::uint32_t i = count; i-- > 0;) {
      const SlotId slot(end + i);
      SlotId present = BlockIndex::kNoSlot;
      if (keys[i]) {
        index_.find({&*keys[i], 1}, {&present, 1});
        static_cast<void>(peers_->hide({&present, 1}));
      }
      if (!keys[i] || present != BlockIndex::kNoSlot) {
        unused[num_unused++] = slot;
        continue;
      }
      table_.make_evictable(slot);
      index_.insert({&*keys[i], 1}, {&slot, 1});
      note({&slot, 1}, MoveKind::kCame);
      mark_promised({&slot, 1});
    }
    set_aside_unless_free(std::span(unused).first(num_unused));
  }
  resize_policy();
  dcheck_conserved();
  return true;
}

void SlotClass::resize_policy() {
  const std::uint32_t now = table_.num_slots();
  const std::uint32_t change = std::max(now, num_policy_slots_) - std::min(now, num_policy_slots_);
  if (now == 0 || change * kPolicyTolerance < num_policy_slots_) return;
  policy_.resize(now);
  num_policy_slots_ = now;
}

}  // namespace kvferry::cpu_tier
