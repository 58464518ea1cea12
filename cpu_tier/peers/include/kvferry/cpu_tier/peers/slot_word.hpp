// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/strong_id.hpp"

#include <atomic>
#include <cstdint>

/// The word of one slot in a tier that engine instances share: the state of the slot, and the
/// instances that read it. It lies in shared memory, and each transition is one compare-and-swap.
/// So a process that is stopped or killed at any moment leaves a complete state.
///
///     free -> filling -> readable -> filling           evicted for what is stored there next
///                                 -> free              given away, or forgotten unread
///                                 -> dying -> free     forgotten while an instance read
///             free -> dying                            forgotten, then withdrawn by the owner
///             filling -> free                          its device has ended without success
///             filling -> quarantined -> free           its writer died, or is in doubt
///             damaged -> quarantined -> free           what it was is unknown
///
/// Only the owner of the chunk makes these transitions. A reader only sets and clears its own bit,
/// and a bit can only be set on a readable slot. The owner evicts only slots without a bit. A slot
/// is filling from its reservation on, before any device knows it.
///
/// A reader that finds that the bytes of its slot are not what was stored *withdraws* the slot. It
/// cannot be leased from then on, and is never filled or free again: once its owner has forgotten
/// it, it stays dying.
namespace kvferry::cpu_tier {

/// Setting one more bit turns readable into dying. So forgetting takes one step, however many
/// instances lease the slot at that moment.
enum class SharedState : std::uint8_t {
  kFree = 0,
  kFilling = 1,
  kReadable = 2,
  kDying = 3,
  kQuarantined = 4
};

/// Number of an engine instance in a shared tier, and of its bit in the slot words.
using InstanceId = StrongId<struct InstanceIdTag, std::uint32_t>;

/// Most instances of one tier at a time. A node has at most 16 devices today; each can belong to a
/// different engine, and old instances can remain while engines restart.
inline constexpr std::uint32_t kMaxInstances = 32;

/// What a word says:
///
///     | generation (24 bits) | lessees (32) | unused (3) | withdrawn (1) | touched (1) | state (3)
///     |
struct SlotWord {
  std::uint64_t bits = 0;

  [[nodiscard]] constexpr SharedState state() const {
    return static_cast<SharedState>(bits & kStateMask);
  }
  /// Whether an instance has leased it since the owner last checked.
  [[nodiscard]] constexpr bool touched() const { return (bits & kTouched) != 0; }
  /// Whether its bytes were found not to be what was stored.
  [[nodiscard]] constexpr bool withdrawn() const { return (bits & kWithdrawn) != 0; }
  /// Whether an instance could lease it.
  [[nodiscard]] constexpr bool can_be_read() const {
    return state() == SharedState::kReadable && !withdrawn();
  }
  [[nodiscard]] constexpr std::uint32_t lessees() const {
    return static_cast<std::uint32_t>(bits >> kLesseeShift);
  }
  /// Rises whenever the slot starts to be filled; wraps.
  [[nodiscard]] constexpr std::uint32_t generation() const {
    return static_cast<std::uint32_t>(bits >> kGenerationShift);
  }
  /// Whether the protocol can produce this word. Otherwise it is damaged: an unknown state, or a
  /// reader of a slot that no instance can read, or one that was never read and is withdrawn.
  [[nodiscard]] constexpr bool is_sound() const {
    return state() == SharedState::kReadable || state() == SharedState::kDying ||
           (state() <= SharedState::kQuarantined && lessees() == 0 && !withdrawn());
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
  [[nodiscard]] constexpr SlotWord as_withdrawn() const { return {bits | kWithdrawn}; }
  [[nodiscard]] constexpr SlotWord of_next_generation() const {
    return {bits + (std::uint64_t{1} << kGenerationShift)};
  }
  /// Quarantined, without a reader.
  [[nodiscard]] constexpr SlotWord doubted() const {
    constexpr std::uint64_t kLessees = std::uint64_t{0xffffffff} << kLesseeShift;
    return SlotWord{bits & ~kLessees & ~kWithdrawn}.with(SharedState::kQuarantined);
  }
  bool operator==(const SlotWord&) const = default;

 private:
  static constexpr std::uint64_t kStateMask = 7;
  static constexpr std::uint64_t kTouched = 8;
  static constexpr std::uint64_t kWithdrawn = 16;
  static constexpr unsigned kLesseeShift = 8;
  static constexpr unsigned kGenerationShift = 40;
  [[nodiscard]] static constexpr std::uint64_t bit_of(InstanceId instance) {
    return std::uint64_t{1} << (kLesseeShift + instance.value());
  }
};

/// A word in shared memory. A view. Thread-safe; every call is one atomic step and ends after a
/// bounded number of attempts, whatever other processes do.
class SharedSlot {
 public:
  explicit SharedSlot(std::atomic<std::uint64_t>& word) : word_(&word) {}

  [[nodiscard]] SlotWord load() const { return {word_->load(std::memory_order_acquire)}; }

  // ---- the owner of the chunk ----

  /// free -> filling: a device can write the slot from now on. Returns false if it is not free.
  [[nodiscard]] bool begin_fill();
  /// readable -> filling, in one step, if no instance reads it, and it is not withdrawn. Returns
  /// false as evict().
  [[nodiscard]] bool refill();
  /// filling -> readable: every rank has stored it. An instance that leases it sees everything that
  /// was written before. Returns false if it is not filling.
  [[nodiscard]] bool publish();
  /// filling -> free: no device can write it any more. Returns false if it is not filling.
  [[nodiscard]] bool abandon();
  /// readable -> free, if no instance reads it. Returns false if an instance reads it or is about
  /// to, or if it is not readable or is withdrawn.
  [[nodiscard]] bool evict();
  /// readable (a precondition) -> free, or dying if an instance reads it or it is withdrawn. No
  /// instance can lease it any more. Returns the new state.
  [[nodiscard]] SharedState forget();
  /// dying -> free when no instance reads it. Returns false if one does, or if it is not dying or
  /// is withdrawn.
  [[nodiscard]] bool free_dying();
  /// Whether an instance has leased it since the last call.
  [[nodiscard]] bool take_touched();
  /// filling -> quarantined: a device could write it until it is proven that it cannot.
  [[nodiscard]] bool quarantine();
  /// quarantined -> free, on proof that no device can write it.
  [[nodiscard]] bool free_quarantined();
  /// A damaged word, or one that is filling although no device fills it -> quarantined: the earlier
  /// state of a damaged word is unknown, and a device could write the slot. Returns false if the
  /// word keeps changing.
  [[nodiscard]] bool doubt();

  // ---- any instance ----

  /// Sets the reader's bit on a readable slot. The slot is neither evicted nor rewritten until the
  /// bit is cleared. Returns false if the slot is not readable, if the bit is already set (an
  /// instance counts its own leases itself), or if the slot keeps changing.
  [[nodiscard]] bool lease(InstanceId reader);
  /// For an instance that has leased the slot, or owns it and keeps it readable or dying: its bytes
  /// are not what was stored. No instance leases it any more, and it is never filled or free again.
  /// If its owner still reads what it has forgotten, the word says free, because the owner's own
  /// leases are not in it; then it becomes dying.
  void withdraw();
  /// Clears the reader's bit in any state. Returns whether it was set.
  bool end_lease(InstanceId reader);

 private:
  /// Changes a state that no other instance can change. Returns whether the word was in the first
  /// state.
  bool move(SharedState from, SharedState to);
  /// The same, but only if no instance reads the slot. If it starts to be filled, its next
  /// generation begins.
  bool move_unread(SharedState from, SharedState to);

  std::atomic<std::uint64_t>* word_;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace kvferry::cpu_tier
