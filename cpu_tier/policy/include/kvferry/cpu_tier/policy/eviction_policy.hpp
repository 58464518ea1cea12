// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/eviction_memory.hpp"
#include "kvferry/cpu_tier/policy/offer_history.hpp"
#include "kvferry/cpu_tier/policy/policy_race.hpp"
#include "kvferry/cpu_tier/policy/policy_rule.hpp"
#include "kvferry/cpu_tier/policy/promise_ledger.hpp"
#include "kvferry/cpu_tier/policy/tier_options.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace kvferry::cpu_tier {

/// Where a block that is stored begins.
struct Placement {
  Segment segment = Segment::kProbation;
  std::uint8_t heat = 1;
};

/// What is decided about blocks, apart from the slots: which offers a full tier stores, where
/// stored blocks begin, and where victims are taken from. It knows keys by their 64 mixed bits only
/// and holds nothing of the tier, so that no decision of it can break an invariant.
///
/// Memory: nothing for plain LRU; else 16 bytes per slot for the history of offers, 28 to 32 more
/// for what an eviction remembers (ARC's ghosts), and less than 512 KiB in all for the simulated
/// tiers; and what promises take, once there are any (PromiseLedger).
///
/// One thread at a time. Nothing throws but construction.
class EvictionPolicy {
 public:
  EvictionPolicy(const TierOptions& options, std::uint32_t max_slots);

  void resize(std::uint32_t num_slots);

  /// One segment is enough: the rule is LRU for ever.
  [[nodiscard]] bool is_plain_lru() const { return !history_ && !memory_; }

  /// A block of an offer, from the last to the first, and whether the tier holds it.
  void offered(std::uint64_t hash, PolicyRace::Presence presence) { race_.offered(hash, presence); }
  /// That were all blocks of the offer.
  void end_offer() { race_.end_offer(); }
  /// An absent block is offered for a store: how often it was, this time included, as far as that
  /// is known and wanted; as often as a block after it at least.
  [[nodiscard]] std::uint32_t count_offer(std::uint64_t hash, std::uint32_t num_offers_after) {
    return history_ ? history_->count_offer(hash, num_offers_after) : 1;
  }
  /// How often a block was offered while it was absent, as far as that is remembered.
  [[nodiscard]] std::uint32_t num_offers(std::uint64_t hash) const {
    return history_ ? history_->num_offers(hash) : 1;
  }
  /// count_offer() comes soon.
  void prefetch(std::uint64_t hash) const {
    if (history_) history_->prefetch(hash);
  }
  [[nodiscard]] AdmissionRule admission() const { return rule().admission; }
  /// Absent blocks are stored now, first to last. None begins in a better segment than `before`,
  /// where the one before them did, and none in a worse one than the next.
  void place(std::span<const std::uint64_t> hashes, std::span<Placement> placements,
             Segment before);

  [[nodiscard]] VictimRule victims() const {
    VictimRule victims = rule().victims;
    if (memory_) victims = {VictimRule::From::kProbationAbove, memory_->probation_share()};
    if (believes()) victims.max_stays = promises_.max_stays();
    return victims;
  }
  [[nodiscard]] bool wants_evicted() const { return memory_ != nullptr; }
  void evicted(std::uint64_t hash, Segment from, std::uint32_t num_probation) {
    if (memory_) memory_->evicted(hash, from, num_probation);
  }

  /// Whether promises are believed now: it is known what they cost.
  [[nodiscard]] bool believes() const {
    return !memory_ && rule().admission == AdmissionRule::kAll &&
           rule().victims.from == VictimRule::From::kOldest;
  }
  /// What clients have promised, and what it has won and cost.
  [[nodiscard]] PromiseLedger& promises() { return promises_; }
  [[nodiscard]] const PromiseLedger& promises() const { return promises_; }

  /// The rule in force.
  [[nodiscard]] const PolicyRule& rule() const { return race_.current(); }
  [[nodiscard]] std::uint64_t num_switches() const { return race_.num_switches(); }

 private:
  PolicyRace race_;
  std::optional<OfferHistory> history_;
  /// If there is one, the rule decides on admission only.
  std::unique_ptr<EvictionMemory> memory_;
  PromiseLedger promises_;
};

}  // namespace kvferry::cpu_tier
