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

/// Where a stored block begins.
struct Placement {
  Segment segment = Segment::kProbation;
  std::uint8_t heat = 1;
};

/// Decides which offered blocks a full tier stores, in which segment stored blocks begin, and from
/// which segment victims are taken. It knows only 64 mixed bits of each key and has no access to
/// the tier, so none of its decisions can break an invariant of the tier.
///
/// Memory: nothing for plain LRU. Otherwise 16 bytes per slot for the history of offers, 28 to 32
/// more bytes per slot for an EvictionMemory (ARC's ghosts), and less than 512 KiB in total for the
/// simulated tiers. Promises take memory once there are any (PromiseLedger).
///
/// Used by one thread at a time. Only construction throws.
class EvictionPolicy {
 public:
  EvictionPolicy(const TierOptions& options, std::uint32_t max_slots);

  void resize(std::uint32_t num_slots);

  /// Whether the rule is always LRU, so that one segment is enough.
  [[nodiscard]] bool is_plain_lru() const { return !history_ && !memory_; }

  /// One block of an offer, and whether the tier holds it. Call it for each block, from the last to
  /// the first.
  void offered(std::uint64_t hash, PolicyRace::Presence presence) { race_.offered(hash, presence); }
  /// Call it after the last block of an offer.
  void end_offer() { race_.end_offer(); }
  /// An absent block is offered. Returns how often it was offered, including this time, as far as
  /// that is remembered: at least as often as a block after it (`num_offers_after`). 1 if no
  /// history is kept.
  [[nodiscard]] std::uint32_t count_offer(std::uint64_t hash, std::uint32_t num_offers_after) {
    return history_ ? history_->count_offer(hash, num_offers_after) : 1;
  }
  /// How often a block was offered while it was absent, as far as that is remembered; 1 if no
  /// history is kept.
  [[nodiscard]] std::uint32_t num_offers(std::uint64_t hash) const {
    return history_ ? history_->num_offers(hash) : 1;
  }
  /// A hint that count_offer() will be called soon.
  void prefetch(std::uint64_t hash) const {
    if (history_) history_->prefetch(hash);
  }
  [[nodiscard]] AdmissionRule admission() const { return rule().admission; }
  /// Places absent blocks that are stored now, given from the first to the last. No block begins in
  /// a better segment than `before`, the segment of the block before them, and no block in a worse
  /// segment than the next block.
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

  /// Whether promises have an effect now. They do only under plain LRU, where their cost is known.
  [[nodiscard]] bool believes() const {
    return !memory_ && rule().admission == AdmissionRule::kAll &&
           rule().victims.from == VictimRule::From::kOldest;
  }
  /// The promises of clients, and what they have won and cost.
  [[nodiscard]] PromiseLedger& promises() { return promises_; }
  [[nodiscard]] const PromiseLedger& promises() const { return promises_; }

  /// The rule in force.
  [[nodiscard]] const PolicyRule& rule() const { return race_.current(); }
  [[nodiscard]] std::uint64_t num_switches() const { return race_.num_switches(); }

 private:
  PolicyRace race_;
  std::optional<OfferHistory> history_;
  /// If it is not null, the rule decides only on admission.
  std::unique_ptr<EvictionMemory> memory_;
  PromiseLedger promises_;
};

}  // namespace kvferry::cpu_tier
