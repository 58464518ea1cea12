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
#include <vector>

/// The interface between a tier and its *peers*: other processes that use the same memory. A tier
/// publishes every transition that peers can see, and searches the peers' slots for keys that it
/// does not have. A tier makes one virtual call for a batch, and none for a single block.
/// NoPeers is for memory that only one process has. TierPeers (cpu_tier/peers) is for a tier that
/// several engines share.
namespace kvferry::cpu_tier {

/// How a chunk is divided: its number of slots, and which of the slab classes with that number.
struct ChunkShape {
  std::uint32_t num_slots = 0;
  std::uint32_t slab_class = 0;
  bool operator==(const ChunkShape&) const = default;
};

/// Chunks [first, first + count) that a tier has just taken. If `holds` is set, it is a single
/// chunk with this division, and the tier can use its contents.
struct TakenChunks {
  ChunkId first;
  std::uint32_t count = 0;
  std::optional<ChunkShape> holds = std::nullopt;
};

/// Slots of peers that a tier has found and can read.
struct GuestCounts {
  std::uint32_t num_guests = 0;
  std::uint32_t num_leased = 0;
  std::uint32_t num_in_index = 0;
  std::uint64_t num_found_total = 0;
};

/// The slots of one slab class, as peers see them. A tier *owns* the slots of its own chunks. A
/// *guest* is a slot of a peer that the tier has found: the tier's index leads to it, but its table
/// says that it is absent.
///
/// refill_unused(), evict(), forget() and make_free() reorder the given slots: the slots for which
/// the call succeeded come first, and the call returns their number. All functions are called under
/// the tier's lock. Only find() and find_prefix() throw (std::bad_alloc).
class PeerSlots {
 public:
  virtual ~PeerSlots() = default;

  // ---- own slots ----

  /// The slots are reserved. Those that were free, `num_free` of them, are being filled from now
  /// on. (The others were refilled.)
  virtual void begin_fill(std::span<const SlotId> slots, std::uint32_t num_free) = 0;
  /// The slots were being filled; now they can be read under the keys that `index` has for them.
  virtual void publish(std::span<const SlotId> slots, const BlockIndex& index) = 0;
  /// The slots were being filled; now they are free, because no device can write them any more.
  virtual void abandon(std::span<const SlotId> slots) = 0;
  /// Readable slots: those that no peer reads, or has read since the last call, are being filled
  /// from now on.
  virtual std::size_t refill_unused(std::span<SlotId> slots) = 0;
  /// Readable slots: those that no peer reads are free from now on.
  virtual std::size_t evict(std::span<SlotId> slots) = 0;
  /// Readable slots: no peer finds them any more, and those that no peer reads are free from now
  /// on.
  virtual std::size_t forget(std::span<SlotId> slots) = 0;
  /// Slots that the tier cannot use: those that have become free, because no peer reads them and
  /// their quarantine is over.
  virtual std::size_t make_free(std::span<SlotId> slots) = 0;
  /// Whether a peer reads any of them.
  [[nodiscard]] virtual bool any_read(SlotRange range) const = 0;
  /// Sets keys[i] to the key of slot first + i, in a chunk that was just taken; to nothing if that
  /// slot is not readable.
  virtual void read_keys(SlotId first, std::span<std::optional<BlockKey>> keys) const = 0;

  // ---- slots of peers ----

  /// For each slots[i] that is BlockIndex::kNoSlot, searches a guest with keys[i]. If there is one,
  /// slots[i] becomes its slot, which is then in the tier's index and leased from the peer.
  virtual void find(std::span<const BlockKey> keys, std::span<SlotId> slots) = 0;
  /// The same, up to the first key that neither this tier nor a peer has.
  virtual void find_prefix(std::span<const BlockKey> keys, std::span<SlotId> slots) = 0;
  /// Each slots[i] that is BlockIndex::kNoSlot becomes kHeldByPeer if a peer has keys[i]. Leases
  /// nothing.
  virtual void mark_held(std::span<const BlockKey> keys, std::span<SlotId> slots) const = 0;
  static constexpr SlotId kHeldByPeer{0xfffffffe};
  /// How many of the absent slots, counted from the first, are guests that can be read. They are
  /// kept for the time of a step.
  [[nodiscard]] virtual std::size_t ask_for(std::span<const SlotId> slots) = 0;
  /// Guests in the span become BlockIndex::kNoSlot, because the tier is about to store their keys
  /// itself. Returns whether there were any.
  virtual bool hide(std::span<SlotId> slots) = 0;
  /// Adds or removes one lease on each guest. The second returns whether any guest was released.
  virtual void lease(std::span<const SlotId> slots) = 0;
  virtual bool end_leases(std::span<const SlotId> slots) = 0;
  /// The guests' leases outlast the tier, because a device could still read them.
  virtual void leave_behind(std::span<const SlotId> slots) = 0;
  /// The bytes of the guests among the slots are in doubt: they are not found again. Returns
  /// whether any could be found before.
  virtual bool shun(std::span<const SlotId> slots) = 0;
  /// The bytes of these slots, own or guests, which the caller has leased, are not what was stored.
  /// No tier finds them any more, and forget() and make_free() do not free them any more. The tier
  /// then forgets its own ones and shuns the guests.
  virtual void withdraw(std::span<const SlotId> slots) = 0;
  /// Own readable slots that peers have withdrawn since the last call.
  [[nodiscard]] virtual std::vector<SlotId> take_withdrawn() = 0;
  /// No guest is found any more. Returns whether any could be found before.
  virtual bool hide_all() = 0;
  /// The tier is about to own the range, so its guests are released. Returns false if one is
  /// leased; those before it were released.
  [[nodiscard]] virtual bool let_go(SlotRange range) = 0;
  /// Releases guests that are not leased and were not requested since the last call. Returns
  /// whether there were any.
  virtual bool drop_idle() = 0;

  [[nodiscard]] virtual GuestCounts guests() const = 0;
  /// Checks that the peers' view of the slots agrees with the table; otherwise an invariant is
  /// broken. For tests.
  virtual void check_invariants(const SlotTable& table) const = 0;
};

/// The chunks of a tier's memory, and the peers that use them too. Outlives the PeerSlots that it
/// makes. Called under the tier's lock.
class Peers {
 public:
  virtual ~Peers() = default;

  /// Makes the PeerSlots of one class. Slots are below `max_slots`; `index` is the tier's and
  /// outlives the result.
  [[nodiscard]] virtual std::unique_ptr<PeerSlots> slots_of(const ChunkShape& shape,
                                                            BlockIndex& index,
                                                            std::uint32_t max_slots) = 0;

  // ---- chunks ----

  /// Chunks [0, num_chunks) can be used from now on; never fewer than before.
  virtual void grow_to(std::uint32_t num_chunks) = 0;
  /// Chunks that no other process can take, and that no class has used.
  [[nodiscard]] virtual std::uint32_t num_free_chunks() const = 0;
  /// About how many chunks take_chunks() could take at once.
  [[nodiscard]] virtual std::uint32_t num_obtainable_chunks() const = 0;
  /// Takes at most `most` chunks without an owner; none if there are none.
  [[nodiscard]] virtual TakenChunks take_chunks(std::uint32_t most) = 0;
  /// Divides own chunks again, and forgets their contents. If a word of one is damaged, returns
  /// false, and the chunks are given up.
  [[nodiscard]] virtual bool divide(const TakenChunks& chunks, const ChunkShape& shape) = 0;
  /// Gives up an own chunk: it has no owner any more, and its readable slots stay readable. If a
  /// slot of it is being filled, returns false, and the tier keeps the chunk.
  virtual bool give_up(ChunkId chunk) = 0;
  /// Takes chunks [first, first + count) out of use, which are free, or own chunks of no class: the
  /// machine gets the memory back. Returns false, and nothing changes, if other processes have the
  /// memory too.
  virtual bool take_out(ChunkId first, std::uint32_t count) = 0;
  /// The reverse: chunks below `max_chunks` that were taken out of use, or were never usable,
  /// become free.
  virtual void put_back(ChunkId first, std::uint32_t count) = 0;

  // ---- the others ----

  /// Announces to peers how many chunks this tier could not get since the last call, and how long
  /// its coldest block has been unused. Returns how many chunks this tier should give up for the
  /// peers.
  [[nodiscard]] virtual std::uint32_t tend(std::uint32_t num_wanted,
                                           std::chrono::seconds coldest_age) = 0;
  /// Adds `by` to the things on which the bytes of a block depend. Called before anything is stored
  /// or looked up.
  virtual void narrow_name_space(std::uint64_t by) = 0;
  /// From now on this tier does not use blocks of peers, and peers do not use its blocks.
  virtual void leave_name_space() = 0;
  /// Whether the memory still exists, and others can read it, after this tier has ended.
  [[nodiscard]] virtual bool outlives_tier() const = 0;
};

/// For memory that only one process has. Chunks are never given up; classes pass them on to each
/// other.
[[nodiscard]] std::unique_ptr<Peers> no_peers();

}  // namespace kvferry::cpu_tier
