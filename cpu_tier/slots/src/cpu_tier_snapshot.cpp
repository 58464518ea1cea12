// SPDX-License-Identifier: Apache-2.0
// The tier's counts, and what holds between its parts.
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"

#include <span>
#include <string>

namespace kvferry::cpu_tier {
namespace {

/// Whether the word of an own slot of a shared tier may say this.
bool agree(SlotState state, SharedState word) {
  switch (state) {
    case SlotState::kAbsent:
      return true;  // Not an own one.
    case SlotState::kFree:
      return word == SharedState::kFree;
    case SlotState::kWritable:
    case SlotState::kAborted:
      return word == SharedState::kFilling;
    case SlotState::kEvictable:
    case SlotState::kLeased:
      return word == SharedState::kReadable;
    case SlotState::kDying:        // Leases of its owner are not in the word.
    case SlotState::kQuarantined:  // Or set aside.
      return word != SharedState::kReadable;
  }
  return false;
}

}  // namespace

TierSnapshot CpuTier::snapshot_locked() const {
  TierSnapshot now;
  now.num_free = ledger_.count(SlotState::kFree);
  now.num_writable = ledger_.count(SlotState::kWritable);
  now.num_aborted = ledger_.count(SlotState::kAborted);
  now.num_evictable = ledger_.count(SlotState::kEvictable);
  now.num_leased = ledger_.count(SlotState::kLeased);
  now.num_dying = ledger_.count(SlotState::kDying);
  now.num_quarantined = ledger_.count(SlotState::kQuarantined);
  now.num_slots = ledger_.num_slots();
  now.num_reserved_total = num_reserved_total_;
  now.num_committed_total = num_committed_total_;
  now.num_evicted_total = num_evicted_total_;
  now.num_exhausted_total = num_exhausted_total_;
  now.num_awaited = ledger_.num_awaited();
  now.num_offered_total = num_offered_total_;
  now.num_declined_total = num_declined_total_;
  now.num_rule_switches_total = policy_.num_switches();
  now.num_set_aside = static_cast<std::uint32_t>(set_aside_.size());
  if (guests_) {
    now.num_guests = static_cast<std::uint32_t>(guests_->size());
    now.num_leased_guests = static_cast<std::uint32_t>(guests_->num_leased());
    now.num_guests_total = guests_->num_found_total();
  }
  return now;
}

void CpuTier::dcheck_conserved() const {
  KVFERRY_DCHECK(snapshot_locked().conserved(), "slots were lost or gained (G10)");
  KVFERRY_DCHECK(index_.size() == ledger_.count(SlotState::kWritable) +
                                      ledger_.count(SlotState::kEvictable) +
                                      ledger_.count(SlotState::kLeased) +
                                      (guests_ ? guests_->num_in_index() : 0),
                 "the index holds " + std::to_string(index_.size()) + " keys");
}

void CpuTier::check_invariants() const {
  MutexLock lock(mutex_);
  ledger_.check_invariants();
  index_.check_invariants();
  KVFERRY_CHECK(snapshot_locked().conserved(), "slots were lost or gained (G10)");
  std::uint32_t num_keyed = 0;
  for (std::uint32_t i = 0; i < ledger_.end(); ++i) {
    const SlotId slot(i);
    if (shared_) {
      const SlotWord word = shared_->word(slot);
      KVFERRY_CHECK(agree(ledger_.state(slot), word.state()),
                    "slot " + std::to_string(i) + " is " + to_string(ledger_.state(slot)) +
                        ", and its word says " + std::to_string(word.bits));
    }
    if (!ledger_.readable(slot) && ledger_.state(slot) != SlotState::kWritable) continue;
    ++num_keyed;
    SlotId found;
    index_.find(std::span(&index_.key(slot), 1), std::span(&found, 1));
    KVFERRY_CHECK(found == slot, "the key of slot " + std::to_string(i) + " leads elsewhere");
  }
  if (guests_) num_keyed += static_cast<std::uint32_t>(guests_->num_in_index());
  KVFERRY_CHECK(num_keyed == index_.size(), std::to_string(index_.size()) + " keys for " +
                                                std::to_string(num_keyed) + " slots");
}

}  // namespace kvferry::cpu_tier
