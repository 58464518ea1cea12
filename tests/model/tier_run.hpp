// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/tier.hpp"

#include "one_class.hpp"
#include "reference_tier.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {

/// Random operations on PlainTier and on ReferenceTier, compared after every step: with plain LRU
/// to the last block, with the other policies, and with promises, all but which blocks are evicted
/// and admitted.
class TierRun {
 public:
  using Number = ReferenceTier::Number;

  TierRun(std::uint64_t seed, std::uint32_t max_slots, Number num_keys, const TierOptions& options);

  void step();
  /// Gives every set back; both sides must then be empty but for what is readable.
  void finish();
  /// Slots that stayed, summed over the steps, and slots that left early.
  [[nodiscard]] std::uint64_t num_stays_seen() const { return num_stays_seen_; }
  [[nodiscard]] std::uint64_t num_early_seen() const { return num_early_seen_; }
  /// Slots that were withdrawn.
  [[nodiscard]] std::size_t num_withdrawn() const { return withdrawn_.size(); }

 private:
  /// A set that is out, on both sides.
  template <class Slots>
  struct Held {
    Slots slots;
    ReferenceTier::Set model;
  };

  std::uint32_t below(std::uint32_t bound) {
    return std::uniform_int_distribution<std::uint32_t>(0, bound - 1)(random_);
  }
  /// A run of keys as a request has them, or any keys in any order.
  std::vector<Number> some_numbers();
  static std::vector<BlockKey> to_keys(const std::vector<Number>& numbers);
  template <class Slots>
  std::optional<Held<Slots>> draw(std::vector<Held<Slots>>& from) {
    if (from.empty()) return std::nullopt;
    std::swap(from[below(static_cast<std::uint32_t>(from.size()))], from.back());
    Held<Slots> drawn = std::move(from.back());
    from.pop_back();
    return drawn;
  }
  void reserve();
  void end_store();
  void end_doubt();
  void lease();
  void release();
  void touch();
  [[nodiscard]] bool is_lru() const;
  /// What the model still has as readable and the tier has not, but for what it has just reserved.
  std::set<Number> vanished(const std::vector<Number>& reserved);
  void offer();
  void await();
  void promise();
  /// So many blocks are asked for that some may stay.
  void earn();
  void rare();
  /// A load finds a block damaged.
  void withdraw();
  /// Takes a run of slots out of use, or has one again.
  void resize();
  [[nodiscard]] bool any_named(ChunkRange slots) const;
  /// Same key states (so the same keys were evicted), same counts, and no slot in two hands.
  void compare();
  /// Who hears of every change knows what is readable.
  void compare_key_events(std::span<const KeyState> states);
  /// A slot that a device may write into is in one set; a slot that is read is in none of those.
  void check_slots();

  std::mt19937_64 random_;
  std::uint32_t max_slots_;
  Number num_keys_;
  TierOptions options_;
  std::uint64_t num_compared_ = 0;
  std::uint64_t num_offered_ = 0;
  std::uint64_t num_declined_ = 0;
  std::uint64_t num_stays_seen_ = 0;
  std::uint64_t num_early_seen_ = 0;
  std::vector<BlockKey> universe_;
  std::set<Number> told_readable_;
  std::map<Number, std::uint32_t> promised_;
  std::vector<std::vector<Number>> promises_;
  PlainTier tier_;
  ReferenceTier model_;
  std::vector<Held<WritableSlots>> writable_;
  std::vector<Held<AbortedSlots>> aborted_;
  std::vector<Held<QuarantinedSlots>> quarantined_;
  std::vector<Held<Lease>> leases_;
  std::uint32_t num_grown_ = 0;
  std::vector<ChunkRange> retired_;
  std::set<std::uint32_t> withdrawn_;
};

}  // namespace kvferry::cpu_tier
