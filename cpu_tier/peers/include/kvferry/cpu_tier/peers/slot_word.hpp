// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/strong_id.hpp"

#include <atomic>
#include <cstdint>

/// The word of one slot in a tier that engine instances share: what is in the slot, and which
/// instances read it. It lives in shared memory, and each transition is one compare-and-swap, so
/// that a process that is stopped or killed leaves a whole state, whenever that happens.
///
///     free -> filling -> readable -> filling           evicted for what is stored there next
///                                 -> free              given away, or forgotten unread
///                                 -> dying -> free     forgotten while an instance read
///             filling -> free                          its device has ended without success
///             filling -> quarantined -> free           its writer died, or is in doubt
///             damaged -> quarantined -> free           what it was is unknown
///
/// Only the owner of the chunk makes these; a lessee only sets and clears its own bit, and a bit
/// can be set on readable slots alone. The owner evicts where no bit is set. A slot is
/// filling from its reservation on, before a device knows it.
namespace kvferry::cpu_tier {

/// One more bit makes readable dying: what is forgotten is so after one step, however many lease it
/// at that moment.
enum class SharedState : std::uint8_t {
  kFree = 0,
  kFilling = 1,
  kReadable = 2,
  kDying = 3,
  kQuarantined = 4
};

/// Number of an engine instance in a shared tier: its bit in the slot words.
using InstanceId = StrongId<struct InstanceIdTag, std::uint32_t>;

/// Instances of one tier at a time: a node has at most 16 devices today, and each may be that of
/// an engine of its own, and half of them be starting anew.
inline constexpr std::uint32_t kMaxInstances = 32;

/// What a word says:
///
///     | generation (24 bits) | lessees (32 bits) | unused (4) | touched (1) | state (3) |
struct SlotWord {
  std::uint64_t bits = 0;

  [[nodiscard]] constexpr SharedState state() const {
    return static_cast<SharedState>(bits & kStateMask);
  }
  /// An instance has leased it since the owner last asked.
  [[nodiscard]] constexpr bool touched() const { return (bits & kTouched) != 0; }
  [[nodiscard]] constexpr std::uint32_t lessees() const {
    return static_cast<std::uint32_t>(bits >> kLesseeShift);
  }
  /// Goes up whenever the slot begins to be filled; wraps.
  [[nodiscard]] constexpr std::uint32_t generation() const {
    return static_cast<std::uint32_t>(bits >> kGenerationShift);
  }
  /// Whether the protocol can lead here. What cannot be is damage: a state that there is not, or a
  /// reader of what no instance may read.
  [[nodiscard]] constexpr bool is_sound() const {
    return state() == SharedState::kReadable || state() == SharedState::kDying ||
           (state() <= SharedState::kQuarantined && lessees() == 0);
  }
  [[nodiscard]] constexpr bool is_leased_by(InstanceId instance) const {
    return (bits & bit_of(instance)) != 0;
  }

  [[nodiscard]] constexpr SlotWord with(SharedState state) const {
    return {(bits & ~kStateMask) | static_cast<std::uint64_t>(state)};
  }
  [[nodiscard]] constexpr SlotWord with_lessee(InstanceId instance) const {
    return {bits | bit_of(instance) | kTouched};
  }
  [[nodiscard]] constexpr SlotWord without_lessee(InstanceId instance) const {
    return {bits & ~bit_of(instance)};
  }
  [[nodiscard]] constexpr SlotWord untouched() const { return {bits & ~kTouched}; }
  [[nodiscard]] constexpr SlotWord of_next_generation() const {
    return {bits + (std::uint64_t{1} << kGenerationShift)};
  }
  /// Quarantined, without a reader.
  [[nodiscard]] constexpr SlotWord doubted() const {
    constexpr std::uint64_t kLessees = std::uint64_t{0xffffffff} << kLesseeShift;
    return SlotWord{bits & ~kLessees}.with(SharedState::kQuarantined);
  }
  bool operator==(const SlotWord&) const = default;

 private:
  static constexpr std::uint64_t kStateMask = 7;
  static constexpr std::uint64_t kTouched = 8;
  static constexpr unsigned kLesseeShift = 8;
  static constexpr unsigned kGenerationShift = 40;
  [[nodiscard]] static constexpr std::uint64_t bit_of(InstanceId instance) {
    return std::uint64_t{1} << (kLesseeShift + instance.value());
  }
};

/// A word where it lies. A view; thread-safe; every call is one atomic step and ends after a
/// bounded number of attempts, whatever other processes do.
class SharedSlot {
 public:
  explicit SharedSlot(std::atomic<std::uint64_t>& word) : word_(&word) {}

  [[nodiscard]] SlotWord load() const { return {word_->load(std::memory_order_acquire)}; }

  // ---- the owner of the chunk ----

  /// free -> filling: a device may write the slot from now on. False if it is not free.
  [[nodiscard]] bool begin_fill();
  /// readable -> filling, in one step, if no instance reads it. False as evict().
  [[nodiscard]] bool refill();
  /// filling -> readable: every rank has stored it. What was written before is seen by an
  /// instance that leases it. False if it is not filling.
  [[nodiscard]] bool publish();
  /// filling -> free: no device can write it any more. False if it is not filling.
  [[nodiscard]] bool abandon();
  /// readable -> free, if no instance reads it. False if one does, is about to, or it is not
  /// readable.
  [[nodiscard]] bool evict();
  /// readable, which it has to be -> free, or dying if an instance reads it: none leases it any
  /// more. Which of them.
  [[nodiscard]] SharedState forget();
  /// dying -> free when no instance reads it. False if one does, or it is not dying.
  [[nodiscard]] bool free_dying();
  /// Whether an instance has leased it since the last call.
  [[nodiscard]] bool take_touched();
  /// filling -> quarantined: a device may write it until the opposite is proven.
  [[nodiscard]] bool quarantine();
  /// quarantined -> free, on proof that no device can write it.
  [[nodiscard]] bool free_quarantined();
  /// A word that is not sound, or is filling though no device fills -> quarantined: what a damaged
  /// word was is unknown, and a device may write the slot. False if the word changes all the time.
  [[nodiscard]] bool doubt();

  // ---- any instance ----

  /// Sets the reader's bit on a readable slot: it is neither evicted nor rewritten until it is
  /// cleared. False if the slot is not readable, or the bit is set already (an instance counts its
  /// own leases itself), or the slot changes all the time.
  [[nodiscard]] bool lease(InstanceId reader);
  /// Clears the reader's bit, whatever the state. Whether it was set.
  bool end_lease(InstanceId reader);

 private:
  /// From one state to another that no other instance can leave it for; whether it was in the
  /// first.
  bool move(SharedState from, SharedState to);
  /// The same, but only if no instance reads. What is filled begins its next generation.
  bool move_unread(SharedState from, SharedState to);

  std::atomic<std::uint64_t>* word_;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace kvferry::cpu_tier
