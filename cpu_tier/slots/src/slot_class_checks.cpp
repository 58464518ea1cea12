// SPDX-License-Identifier: Apache-2.0
// Counts, and checks of what must hold between the parts.
#include "kvferry/base/check.hpp"

#include "slot_class.hpp"

#include <span>
#include <string>

namespace kvferry::cpu_tier {

TierSnapshot SlotClass::snapshot() const {
  TierSnapshot now;
  now.num_free = table_.count(SlotState::kFree);
  now.num_writable = table_.count(SlotState::kWritable);
  now.num_aborted = table_.count(SlotState::kAborted);
  now.num_evictable = table_.count(SlotState::kEvictable);
  now.num_leased = table_.count(SlotState::kLeased);
  now.num_dying = table_.count(SlotState::kDying);
  now.num_quarantined = table_.count(SlotState::kQuarantined);
  now.num_slots = table_.num_slots();
  now.num_reserved_total = num_reserved_total_;
  now.num_committed_total = num_committed_total_;
  now.num_evicted_total = num_evicted_total_;
  now.num_exhausted_total = num_exhausted_total_;
  now.num_awaited = table_.num_awaited();
  now.num_offered_total = num_offered_total_;
  now.num_declined_total = num_declined_total_;
  now.num_rule_switches_total = policy_.num_switches();
  const PromiseLedger& promises = policy_.promises();
  now.num_promised = promises.num_promised();
  now.num_stays = table_.lists().num_stays();
  now.num_stays_max = promises.max_stays();
  now.num_won_total = promises.num_won();
  now.num_lost_total = promises.num_lost();
  now.num_early_total = promises.num_early();
  now.num_set_aside = static_cast<std::uint32_t>(set_aside_.size());
  const GuestCounts guests = peers_->guests();
  now.num_guests = guests.num_guests;
  now.num_leased_guests = guests.num_leased;
  now.num_guests_total = guests.num_found_total;
  return now;
}

void SlotClass::dcheck_conserved() const {
  KVFERRY_DCHECK(snapshot().conserved(), "slots were lost or gained (G10)");
  KVFERRY_DCHECK(
      index_.size() == table_.count(SlotState::kWritable) + table_.count(SlotState::kEvictable) +
                           table_.count(SlotState::kLeased) + peers_->guests().num_in_index,
      "the index holds " + std::to_string(index_.size()) + " keys");
}

void SlotClass::check_invariants() const {
  table_.check_invariants();
  index_.check_invariants();
  peers_->check_invariants(table_);
  KVFERRY_CHECK(snapshot().conserved(), "slots were lost or gained (G10)");
  std::uint32_t num_keyed = 0;
  for (std::uint32_t i = 0; i < table_.end(); ++i) {
    const SlotId slot(i);
    const std::uint8_t promise = table_.lists()[slot].promise;
    KVFERRY_CHECK(!table_.readable(slot) || promise == SlotRecord::kLeavesEarly ||
                      promise == policy_.promises().depth(index_.key(slot).mixed()),
                  "slot " + std::to_string(i) + " and its key differ in whether they are promised");
    if (!table_.readable(slot) && table_.state(slot) != SlotState::kWritable) continue;
    ++num_keyed;
    SlotId found;
    index_.find(std::span(&index_.key(slot), 1), std::span(&found, 1));
    KVFERRY_CHECK(found == slot, "the key of slot " + std::to_string(i) + " leads elsewhere");
  }
  num_keyed += peers_->guests().num_in_index;
  KVFERRY_CHECK(num_keyed == index_.size(), std::to_string(index_.size()) + " keys for " +
                                                std::to_string(num_keyed) + " slots");
}

}  // namespace kvferry::cpu_tier
