// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/block_index.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/slot_range.hpp"
#include "kvferry/cpu_tier/slots/slot_table.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

/// What a tier is to do with other processes that use the same memory, its *peers*. A tier tells
/// its peers of every transition that they may see, and asks them for what it does not have, in
/// batches: one virtual call for a batch, none for a block. NoPeers is for a memory that one
/// process has alone; TierPeers (cpu_tier/peers) is for a tier that several engines share.
namespace kvferry::cpu_tier {

/// How a chunk is divided: its number of slots, and which of the slab classes with so many.
struct ChunkShape {
  std::uint32_t num_slots = 0;
  std::uint32_t slab_class = 0;
  bool operator==(const ChunkShape&) const = default;
};

/// Chunks [first, first + count) that a tier has just taken. What is in them is of use to it if
/// `holds` is set: a single chunk, divided like that.
struct TakenChunks {
  ChunkId first;
  std::uint32_t count = 0;
  std::optional<ChunkShape> holds = std::nullopt;
};

/// Slots of peers that a tier has found, and may read.
struct GuestCounts {
  std::uint32_t num_guests = 0;
  std::uint32_t num_leased = 0;
  std::uint32_t num_in_index = 0;
  std::uint64_t num_found_total = 0;
};

/// The slots of one slab class, as peers see them. A tier that has a slot *owns* it; a *guest* is a
/// slot of a peer that the tier has found: the tier's index leads to it, its table says that it is
/// absent.
///
/// refill_unused(), evict(), forget() and make_free() change the order of the slots: those that the
/// call's sentence is true of come first, and the call returns their number. Called under the
/// tier's lock. Nothing throws but find() and find_prefix() (std::bad_alloc).
class PeerSlots {
 public:
  virtual ~PeerSlots() = default;

  // ---- own slots ----

  /// The slots are reserved: those that were free, `num_free` of them, are being filled from now
  /// on. (The others were refilled.)
  virtual void begin_fill(std::span<const SlotId> slots, std::uint32_t num_free) = 0;
  /// The slots, which were being filled, can be read under the keys that `index` has for them.
  virtual void publish(std::span<const SlotId> slots, const BlockIndex& index) = 0;
  /// The slots, which were being filled, are free: no device can write them any more.
  virtual void abandon(std::span<const SlotId> slots) = 0;
  /// Readable slots that no peer reads, or has read since the last time this was asked: they are
  /// being filled from now on.
  virtual std::size_t refill_unused(std::span<SlotId> slots) = 0;
  /// Readable slots that no peer reads: they are free from now on.
  virtual std::size_t evict(std::span<SlotId> slots) = 0;
  /// No peer finds the readable slots any more. Those that no peer reads are free from now on.
  virtual std::size_t forget(std::span<SlotId> slots) = 0;
  /// Slots of no use to the tier that are free by now: no peer reads them, and a quarantine is
  /// over.
  virtual std::size_t make_free(std::span<SlotId> slots) = 0;
  /// Whether a peer reads any of them.
  [[nodiscard]] virtual bool any_read(SlotRange range) const = 0;
  /// keys[i] becomes the key of slot first + i, in a chunk that was just taken; nothing if that
  /// slot cannot be read.
  virtual void read_keys(SlotId first, std::span<std::optional<BlockKey>> keys) const = 0;

  // ---- slots of peers ----

  /// Each slots[i] that is BlockIndex::kNoSlot becomes that of a guest with keys[i], if there is
  /// one; that is in the tier's index then, and leased from the peer.
  virtual void find(std::span<const BlockKey> keys, std::span<SlotId> slots) = 0;
  /// The same up to the first key that neither this tier nor a peer has.
  virtual void find_prefix(std::span<const BlockKey> keys, std::span<SlotId> slots) = 0;
  /// Each slots[i] that is BlockIndex::kNoSlot becomes kHeldByPeer if a peer has keys[i]. Takes
  /// nothing.
  virtual void mark_held(std::span<const BlockKey> keys, std::span<SlotId> slots) const = 0;
  static constexpr SlotId kHeldByPeer{0xfffffffe};
  /// How many of the absent slots, from the first on, are guests that can be read. They are kept
  /// for the time of a step.
  [[nodiscard]] virtual std::size_t ask_for(std::span<const SlotId> slots) = 0;
  /// Guests become BlockIndex::kNoSlot: their keys are about to be the tier's own. Whether any did.
  virtual bool hide(std::span<SlotId> slots) = 0;
  /// One lease more, or less, on each guest. Whether any guest was let go.
  virtual void lease(std::span<const SlotId> slots) = 0;
  virtual bool end_leases(std::span<const SlotId> slots) = 0;
  /// The guests' leases outlast the tier: a device may still read them.
  virtual void leave_behind(std::span<const SlotId> slots) = 0;
  /// The bytes of those that are guests are doubted: they are not found again. Whether any could
  /// be found.
  virtual bool shun(std::span<const SlotId> slots) = 0;
  /// No guest is found any more. Whether any could be.
  virtual bool hide_all() = 0;
  /// The range is about to be the tier's own: its guests are let go. False if one is leased; those
  /// before it were let go.
  [[nodiscard]] virtual bool let_go(SlotRange range) = 0;
  /// Lets guests go that are not leased and were not asked for since the last call. Whether any
  /// were.
  virtual bool drop_idle() = 0;

  [[nodiscard]] virtual GuestCounts guests() const = 0;
  /// What peers see of the slots agrees with the table; else a broken invariant. For tests.
  virtual void check_invariants(const SlotTable& table) const = 0;
};

/// The memory of a tier: where its chunks come from and go, and which peers use them too. Outlives
/// the PeerSlots that it makes. Called under the tier's lock.
class Peers {
 public:
  virtual ~Peers() = default;

  /// Of one class; slots are below `max_slots`, `index` is the tier's and outlives the result.
  [[nodiscard]] virtual std::unique_ptr<PeerSlots> slots_of(const ChunkShape& shape,
                                                            BlockIndex& index,
                                                            std::uint32_t max_slots) = 0;

  // ---- chunks ----

  /// Chunks [0, num_chunks) can be used from now on; never fewer than before.
  virtual void grow_to(std::uint32_t num_chunks) = 0;
  /// Chunks that no other process can take, and that no class has had.
  [[nodiscard]] virtual std::uint32_t num_free_chunks() const = 0;
  /// About how many chunks take_chunks() could bring at once.
  [[nodiscard]] virtual std::uint32_t num_obtainable_chunks() const = 0;
  /// Takes at most `most` chunks that have no owner; none if there are none.
  [[nodiscard]] virtual TakenChunks take_chunks(std::uint32_t most) = 0;
  /// Divides own chunks anew, and forgets what they hold. False, and they are given up, if a word
  /// of one is damaged.
  [[nodiscard]] virtual bool divide(const TakenChunks& chunks, const ChunkShape& shape) = 0;
  /// Gives up an own chunk: it has no owner any more; what can be read in it stays. False, and it
  /// stays own, if a slot of it is being filled.
  virtual bool give_up(ChunkId chunk) = 0;
  /// Chunks [first, first + count), which are free or own ones of no class, go out of use: the
  /// memory is the machine's again. False, and nothing changes, where other processes have it too.
  virtual bool take_out(ChunkId first, std::uint32_t count) = 0;
  /// The same in reverse, of chunks below `max_chunks` that were taken out or never usable: they
  /// are free.
  virtual void put_back(ChunkId first, std::uint32_t count) = 0;

  // ---- the others ----

  /// Tells peers that so many chunks could not be had since the last call, and for how long the
  /// coldest block has not been used. Returns how many chunks this tier is to give up for them.
  [[nodiscard]] virtual std::uint32_t tend(std::uint32_t num_wanted,
                                           std::chrono::seconds coldest_age) = 0;
  /// The bytes of a block depend on `by`, too; before anything is stored or looked for.
  virtual void narrow_name_space(std::uint64_t by) = 0;
  /// What peers have is of no use to this tier any more, nor is what it has to them.
  virtual void leave_name_space() = 0;
  /// Whether the memory is there, and others may read it, after this tier has ended.
  [[nodiscard]] virtual bool outlives_tier() const = 0;
};

/// For a memory that one process has alone. Chunks never come back: classes pass them on.
[[nodiscard]] std::unique_ptr<Peers> no_peers();

}  // namespace kvferry::cpu_tier
