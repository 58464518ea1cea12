// SPDX-License-Identifier: Apache-2.0
// Blocks that are offered, waited for and used again. These calls move no block.
#include "kvferry/base/check.hpp"

#include "batches.hpp"
#include "slot_class.hpp"

#include <algorithm>
#include <array>

namespace kvferry::cpu_tier {

/// The common state of the offers of one call, from its last key to its first.
struct SlotClass::OfferRun {
  AdmissionRule admission;
  /// The most often that a key from here on was offered. Keys are chained hashes, so a request that
  /// offered a later key offered all earlier ones as often, even if the history forgot them.
  std::uint32_t num_offers = 1;
  std::size_t num_absent = 0;
  std::size_t num_admitted = 0;
  /// Blocks that a load could have brought without the promises, but cannot bring now: blocks that
  /// left for promised ones, and blocks that the tier holds after those.
  std::uint32_t num_lost = 0;
  std::uint32_t num_held_after = 0;
};

void SlotClass::offer(std::span<const BlockKey> keys, std::span<OfferAnswer> answers,
                      std::size_t num_to_come, std::size_t num_ever) {
  KVFERRY_CHECK(keys.size() == answers.size(), "offer() with spans of different lengths");
  const std::size_t num_free = table_.count(SlotState::kFree) + num_to_come;
  // A tier that has not grown yet will have room when its first blocks are due.
  const bool may_decline = num_free < keys.size() && table_.num_slots() > 0;
  OfferRun run{may_decline ? policy_.admission() : AdmissionRule::kAll};
  for (std::size_t end = keys.size(); end > 0;) {
    const std::size_t count = std::min(kStep, end);
    offer_batch(keys.subspan(end - count, count), answers.subspan(end - count, count), run);
    end -= count;
  }
  policy_.end_offer();
  if (run.admission == AdmissionRule::kHotterThanVictim) {
    run.num_admitted = count_hotter(keys, answers);
  }
  // It stores as many as the policy admitted, or as there are free slots, but always the first
  // ones, because blocks after a missing block are useless. And it does not store so many that
  // blocks before them would leave for them.
  const std::size_t num_that_fit = num_ever - std::min<std::size_t>(num_ever, run.num_held_after);
  std::size_t num_stored = std::max(run.num_admitted, std::min(num_free, run.num_absent));
  if (table_.num_slots() > 0) num_stored = std::min(num_stored, num_that_fit);
  std::size_t left = num_stored;
  for (OfferAnswer& answer : answers) {
    if (answer == OfferAnswer::kHeld) continue;
    answer = left > 0 ? OfferAnswer::kStore : OfferAnswer::kDeclined;
    left -= left > 0 ? 1 : 0;
  }
  policy_.promises().asked(keys.size());
  policy_.promises().lost(run.num_lost);
  num_offered_total_ += run.num_absent;
  num_declined_total_ += run.num_absent - num_stored;
  dcheck_conserved();
}

void SlotClass::offer_batch(std::span<const BlockKey> keys, std::span<OfferAnswer> answers,
                            OfferRun& run) {
  std::array<SlotId, kStep> slots;
  std::array<std::uint64_t, kStep> hashes;
  const std::size_t count = keys.size();
  for (std::size_t i = 0; i < count; ++i) hashes[i] = keys[i].mixed();
  index_.find(keys, std::span(hashes).first(count), std::span(slots).first(count));
  peers_->mark_held(keys, std::span(slots).first(count));
  if (!policy_.is_plain_lru()) {
    for (std::size_t i = count; i-- > 0;) {
      if (slots[i] == BlockIndex::kNoSlot) policy_.prefetch(hashes[i]);
    }
    for (std::size_t i = count; i-- > 0;) {
      const bool is_held = slots[i] != BlockIndex::kNoSlot;
      policy_.offered(hashes[i],
                      is_held ? PolicyRace::Presence::kHeld : PolicyRace::Presence::kAbsent);
    }
  }
  for (std::size_t i = count; i-- > 0;) {
    if (slots[i] != BlockIndex::kNoSlot) {
      answers[i] = OfferAnswer::kHeld;
      ++run.num_held_after;
      if (slots[i] != PeerSlots::kHeldByPeer && table_.readable(slots[i])) table_.touch(slots[i]);
      continue;
    }
    answers[i] = OfferAnswer::kStore;
    ++run.num_absent;
    if (policy_.promises().missed(hashes[i], table_.lists().num_turns())) {
      run.num_lost += 1 + run.num_held_after;
    } else {
      run.num_lost = 0;  // With or without promises, no load reaches the blocks after it.
    }
    run.num_held_after = 0;
    if (policy_.is_plain_lru()) {
      ++run.num_admitted;
      continue;
    }
    run.num_offers = policy_.count_offer(hashes[i], run.num_offers);
    if (run.admission != AdmissionRule::kAll && run.num_offers < 2) continue;
    ++run.num_admitted;
  }
}

std::size_t SlotClass::count_hotter(std::span<const BlockKey> keys,
                                    std::span<const OfferAnswer> answers) {
  std::size_t num_hotter = 0;
  std::uint32_t num_offers = 0;
  SlotId victim = table_.turn(policy_.victims());
  for (std::size_t i = keys.size(); i-- > 0;) {
    if (answers[i] == OfferAnswer::kHeld) continue;
    num_offers = std::max(num_offers, policy_.num_offers(keys[i].mixed()));
    if (num_offers < 2) continue;
    if (victim != SlotLists::kNoSlot) {
      if (table_.withstands(victim, num_offers)) continue;
      victim = table_.lists().hotter_than(victim);
    }
    ++num_hotter;
  }
  return num_hotter;
}

void SlotClass::await(std::span<const BlockKey> keys) {
  SlotBatch batch;
  for (std::size_t end = keys.size(); end > 0;) {
    const std::size_t count = std::min(kBatch, end);
    index_.find(keys.subspan(end - count, count), std::span(batch).first(count));
    await_slots(std::span(batch).first(count));
    end -= count;
  }
  dcheck_conserved();
}

void SlotClass::await(const PrefixHit& hit) {
  if (hit.eviction_epoch == eviction_epoch_) await_slots(hit.slots);
  dcheck_conserved();
}

void SlotClass::await_slots(std::span<const SlotId> slots) {
  const auto max_awaited =
      static_cast<std::uint32_t>(max_awaited_share_ * static_cast<float>(table_.num_slots()));
  for (std::size_t i = slots.size(); i-- > 0;) {
    if (slots[i] != BlockIndex::kNoSlot && table_.state(slots[i]) == SlotState::kEvictable) {
      table_.await(slots[i], max_awaited);
    }
  }
}

void SlotClass::end_await(std::span<const BlockKey> keys) {
  SlotBatch batch;
  for (std::size_t end = keys.size(); end > 0 && table_.num_awaited() > 0;) {
    const std::size_t count = std::min(kBatch, end);
    index_.find(keys.subspan(end - count, count), std::span(batch).first(count));
    for (std::size_t i = count; i-- > 0;) {
      if (batch[i] != BlockIndex::kNoSlot && table_.state(batch[i]) == SlotState::kEvictable) {
        table_.end_await(batch[i]);
      }
    }
    end -= count;
  }
  dcheck_conserved();
}

void SlotClass::touch(std::span<const BlockKey> keys) {
  SlotBatch batch;
  for (std::size_t end = keys.size(); end > 0;) {
    const std::size_t count = std::min(kBatch, end);
    index_.find(keys.subspan(end - count, count), std::span(batch).first(count));
    for (std::size_t i = count; i-- > 0;) {
      if (batch[i] != BlockIndex::kNoSlot && table_.readable(batch[i])) table_.touch(batch[i]);
    }
    end -= count;
  }
  dcheck_conserved();
}

}  // namespace kvferry::cpu_tier
