// SPDX-License-Identifier: Apache-2.0
// What is offered, waited for and used again: the tier's calls that move no block.
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"

#include "batches.hpp"

#include <algorithm>
#include <array>

namespace kvferry::cpu_tier {

/// What the offers of one call have in common, from its last key to its first.
struct CpuTier::OfferRun {
  AdmissionRule admission;
  /// The most often that a key from here on was offered. Keys are chained hashes: whoever offered a
  /// later one offered all before it as often, whatever is remembered of them.
  std::uint32_t num_offers = 0;
  std::size_t num_absent = 0;
  std::size_t num_admitted = 0;
  /// What would leave for the next one that is admitted.
  SlotId victim = SlotLedger::kNoVictim;
};

void CpuTier::offer(std::span<const BlockKey> keys, std::span<OfferAnswer> answers,
                    std::size_t num_to_come) {
  KVFERRY_CHECK(keys.size() == answers.size(), "offer() with spans of different lengths");
  MutexLock lock(mutex_);
  const std::size_t num_free = ledger_.count(SlotState::kFree) + num_to_come;
  // One that has not grown yet will have room when its first blocks are due.
  const bool may_decline = num_free < keys.size() && ledger_.num_slots() > 0;
  OfferRun run{may_decline ? policy_.admission() : AdmissionRule::kAll};
  if (run.admission == AdmissionRule::kHotterThanVictim) run.victim = ledger_.first_victim();
  for (std::size_t end = keys.size(); end > 0;) {
    const std::size_t count = std::min(kStep, end);
    offer_batch(keys.subspan(end - count, count), answers.subspan(end - count, count), run);
    end -= count;
  }
  // As many as were admitted, or as there are free slots, but the first ones: behind a block that
  // is missing the others are of no use.
  const std::size_t num_stored = std::max(run.num_admitted, std::min(num_free, run.num_absent));
  std::size_t left = num_stored;
  for (OfferAnswer& answer : answers) {
    if (answer == OfferAnswer::kHeld) continue;
    answer = left > 0 ? OfferAnswer::kStore : OfferAnswer::kDeclined;
    left -= left > 0 ? 1 : 0;
  }
  num_offered_total_ += run.num_absent;
  num_declined_total_ += run.num_absent - num_stored;
  dcheck_conserved();
}

void CpuTier::offer_batch(std::span<const BlockKey> keys, std::span<OfferAnswer> answers,
                          OfferRun& run) {
  std::array<SlotId, kStep> slots;
  std::array<std::uint64_t, kStep> hashes;  // Last to first.
  const std::size_t count = keys.size();
  index_.find(keys, std::span(slots).first(count));
  if (sees_others()) {
    // Those that nobody has are about to be stored: then their hints change.
    for (std::size_t i = 0; i < count; ++i) {
      if (slots[i] == BlockIndex::kNoSlot) shared_->prefetch_to_change(keys[i]);
    }
  }
  if (!policy_.is_plain_lru()) {
    for (std::size_t i = 0; i < count; ++i) {
      hashes[i] = keys[count - 1 - i].mixed();
      if (slots[count - 1 - i] == BlockIndex::kNoSlot) policy_.prefetch(hashes[i]);
    }
    policy_.access(std::span(hashes).first(count));
  }
  for (std::size_t i = count; i-- > 0;) {
    if (slots[i] != BlockIndex::kNoSlot) {
      answers[i] = OfferAnswer::kHeld;
      if (ledger_.readable(slots[i])) ledger_.touch(slots[i]);
      continue;
    }
    if (guests_ && guests_->has(keys[i])) {
      answers[i] = OfferAnswer::kHeld;
      continue;
    }
    answers[i] = OfferAnswer::kStore;
    ++run.num_absent;
    if (policy_.is_plain_lru()) {
      ++run.num_admitted;
      continue;
    }
    run.num_offers = std::max(run.num_offers, policy_.count_offer(hashes[count - 1 - i]));
    if (run.admission != AdmissionRule::kAll && run.num_offers < 2) continue;
    if (run.admission == AdmissionRule::kHotterThanVictim) {
      const SlotId victim = run.victim;
      if (victim != SlotLedger::kNoVictim) {
        run.victim = ledger_.next_victim(victim);
        if (ledger_.heat(victim) >= run.num_offers) {
          ledger_.spare(victim);
          continue;
        }
      }
    }
    ++run.num_admitted;
  }
}

void CpuTier::await(std::span<const BlockKey> keys) {
  SlotBatch batch;
  MutexLock lock(mutex_);
  for (std::size_t end = keys.size(); end > 0;) {
    const std::size_t count = std::min(kBatch, end);
    index_.find(keys.subspan(end - count, count), std::span(batch).first(count));
    await_slots(std::span(batch).first(count));
    end -= count;
  }
  dcheck_conserved();
}

void CpuTier::await(const PrefixHit& hit) {
  MutexLock lock(mutex_);
  if (hit.eviction_epoch == eviction_epoch_) await_slots(hit.slots);
  dcheck_conserved();
}

void CpuTier::await_slots(std::span<const SlotId> slots) {
  const auto max_awaited =
      static_cast<std::uint32_t>(max_awaited_share_ * static_cast<float>(ledger_.num_slots()));
  for (std::size_t i = slots.size(); i-- > 0;) {
    if (slots[i] != BlockIndex::kNoSlot && ledger_.state(slots[i]) == SlotState::kEvictable) {
      ledger_.await(slots[i], max_awaited);
    }
  }
}

void CpuTier::end_await(std::span<const BlockKey> keys) {
  SlotBatch batch;
  MutexLock lock(mutex_);
  for (std::size_t end = keys.size(); end > 0 && ledger_.num_awaited() > 0;) {
    const std::size_t count = std::min(kBatch, end);
    index_.find(keys.subspan(end - count, count), std::span(batch).first(count));
    for (std::size_t i = count; i-- > 0;) {
      if (batch[i] != BlockIndex::kNoSlot && ledger_.state(batch[i]) == SlotState::kEvictable) {
        ledger_.end_await(batch[i]);
      }
    }
    end -= count;
  }
  dcheck_conserved();
}

void CpuTier::touch(std::span<const BlockKey> keys) {
  SlotBatch batch;
  MutexLock lock(mutex_);
  for (std::size_t end = keys.size(); end > 0;) {
    const std::size_t count = std::min(kBatch, end);
    index_.find(keys.subspan(end - count, count), std::span(batch).first(count));
    for (std::size_t i = count; i-- > 0;) {
      if (batch[i] != BlockIndex::kNoSlot && ledger_.readable(batch[i])) ledger_.touch(batch[i]);
    }
    end -= count;
  }
  dcheck_conserved();
}

}  // namespace kvferry::cpu_tier
