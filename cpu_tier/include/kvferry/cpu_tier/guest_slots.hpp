// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/block_key.hpp"
#include "kvferry/cpu_tier/shared_slots.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace kvferry::cpu_tier {

/// Slots of other instances of a shared tier, or of nobody, that this one found and may read. A
/// guest is leased from the moment it was found, so that what a lookup has said stays true; one
/// that nobody here has leased and nobody has asked for lately is let go. One thread at a time.
class GuestSlots {
 public:
  explicit GuestSlots(const SharedSlots& slots) : slots_(slots) {}
  /// Lets all go; none is leased here.
  ~GuestSlots();
  GuestSlots(const GuestSlots&) = delete;
  GuestSlots& operator=(const GuestSlots&) = delete;

  /// Whether find() and has() have nothing to look for, whatever the key.
  [[nodiscard]] bool finds_nothing() const { return guests_.empty() && slots_.is_alone(); }
  /// The guest with that key; found just now, if need be.
  [[nodiscard]] std::optional<SlotId> find(const BlockKey& key);
  /// Whether some instance has the key. Takes nothing.
  [[nodiscard]] bool has(const BlockKey& key) const {
    return !finds_nothing() && (by_key_.contains(key) || slots_.has(key));
  }
  /// Whether the slot is a guest that can be read.
  [[nodiscard]] bool readable(SlotId slot) const;
  /// Whether the slot is a guest, readable or forgotten.
  [[nodiscard]] bool knows(SlotId slot) const { return guests_.contains(slot); }
  [[nodiscard]] const BlockKey& key(SlotId slot) const { return guests_.at(slot).key; }

  /// One lease of this instance's own on a guest, more or less.
  void lease(SlotId slot);
  void end_lease(SlotId slot);
  /// A guest's bytes are doubted: it is found no more. Whether it could be until now.
  [[nodiscard]] bool forget(SlotId slot);
  /// The slot's chunk is about to become this instance's own: lets the guest go. False if it is
  /// leased.
  [[nodiscard]] bool may_become_own(SlotId slot);
  /// Finds none of them any more. Whether any could be read.
  [[nodiscard]] bool forget_all();
  /// Lets those go that nobody here has leased, or asked for since the last call. Whether any.
  [[nodiscard]] bool drop_idle();

  [[nodiscard]] std::size_t size() const { return guests_.size(); }
  [[nodiscard]] std::size_t num_leased() const { return num_leased_; }
  /// Since construction.
  [[nodiscard]] std::uint64_t num_found_total() const { return num_found_total_; }

 private:
  struct Guest {
    BlockKey key;
    std::uint32_t num_leases = 0;
    bool asked_for = true;
    bool forgotten = false;
  };
  using Guests = std::unordered_map<SlotId, Guest>;
  /// One that nobody here has leased. Returns what comes behind it.
  Guests::iterator let_go(Guests::iterator guest);

  SharedSlots slots_;
  Guests guests_;
  struct HashOfKey {
    std::size_t operator()(const BlockKey& key) const { return key.mixed(); }
  };
  std::unordered_map<BlockKey, SlotId, HashOfKey> by_key_;
  std::size_t num_leased_ = 0;
  std::uint64_t num_found_total_ = 0;
};

}  // namespace kvferry::cpu_tier
