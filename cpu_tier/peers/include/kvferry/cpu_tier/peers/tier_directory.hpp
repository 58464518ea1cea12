// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/peers/member_lock.hpp"
#include "kvferry/cpu_tier/peers/peer_leases.hpp"
#include "kvferry/cpu_tier/peers/slot_word.hpp"
#include "kvferry/cpu_tier/peers/tier_layout.hpp"
#include "kvferry/cpu_tier/peers/tier_records.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/peers.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {

/// The result of a clean-up after instances that are gone.
struct SweepReport {
  std::uint32_t num_instances = 0;
  std::uint32_t num_orphaned_chunks = 0;
  std::uint64_t num_quarantined_slots = 0;
  std::uint64_t num_ended_leases = 0;
};

/// All operations of one engine instance on the metadata of a shared tier. The instance owns
/// chunks, fills and evicts their slots, and cleans up after instances that are gone. The only
/// locks are those that prove that an instance lives, so a process that is stopped or killed at any
/// point blocks no other.
///
/// The memory (the metadata of `file`) outlives it. Any thread can use leases() and records(). All
/// other functions, which act for the owner of a chunk, are for one thread at a time.
class TierDirectory {
 public:
  struct Identity {
    /// Unique on the node, and different for every start of an engine.
    std::string name;
    /// Fingerprint of model, layout and everything else on which the bytes of a block depend, as
    /// far as it is known when the instance joins; see narrow_name_space().
    std::uint64_t name_space = 0;
    /// The instance's share of the memory in use, in proportion to the other instances' weights.
    std::uint32_t weight = 1;
    /// 0: all.
    std::uint32_t most_chunks = 0;
    /// The longest time for which copies of a process that is gone could continue. The slots that
    /// it was filling stay in quarantine for this time. A driver ends the copies in milliseconds,
    /// when it destroys the process's contexts; this bound allows for a slow driver. Counted from
    /// when this instance first saw the quarantine, by its own clock.
    /// kForEver (or more): the copies of this instance may never end; slots that it was filling
    /// then stay in quarantine until the tier is created again, whoever owns them by then.
    std::chrono::nanoseconds grace = std::chrono::seconds(30);
    static constexpr std::chrono::seconds kForEver{1'000'000'000};
    /// For tests; empty: std::chrono::steady_clock::now.
    std::function<std::chrono::steady_clock::time_point()> clock = {};
  };

  /// Sweeps, and joins as member 0 of the name. Throws ResourceError if kMaxInstances already live
  /// (with their names), or if ranks of an earlier instance of that name still live; and as
  /// MemberLock.
  TierDirectory(std::span<std::byte> metadata, const TierPlaces& places, const TierShape& shape,
                LockFile file, const Identity& identity);
  /// Leaves the tier; committed blocks stay for other and later instances. If none of its ranks
  /// lives, this does the work of sweep(): its chunks then have no owner. Otherwise its ranks could
  /// still make the copies that they were ordered to make, so its chunks, filling slots and leases
  /// stay unchanged until a sweep finds the last rank gone.
  ~TierDirectory();
  TierDirectory(const TierDirectory&) = delete;
  TierDirectory& operator=(const TierDirectory&) = delete;

  [[nodiscard]] InstanceId self() const { return records_.self(); }
  /// The contents of the metadata.
  [[nodiscard]] const TierRecords& records() const { return records_; }
  /// Leases on slots of other instances, or without an owner.
  [[nodiscard]] PeerLeases& leases() { return leases_; }
  [[nodiscard]] const PeerLeases& leases() const { return leases_; }
  /// Chunks [0, num_chunks) are ready on all ranks of this instance. Other chunks are neither
  /// leased nor taken.
  void set_reach(std::uint32_t num_chunks) { records_.set_reach(num_chunks); }
  /// Adds `by` to the things on which the bytes of a block depend. From now on this instance shares
  /// its name space only with instances that gave the same value. Call it before anything is
  /// stored, leased or looked up.
  void narrow_name_space(std::uint64_t by);
  /// From now on this instance has a name space of its own: it does not use blocks of others, nor
  /// do they use its blocks. None of its slots may be readable, or become readable from a store
  /// under way.
  void leave_name_space();

  // ---- chunks ----

  /// Takes a chunk without an owner. It prefers chunks that were never divided or hold nothing
  /// useful, and then takes chunks that another instance left. It looks at a bounded number.
  /// Returns nothing if none of these is available, or if this instance has reached its limit. The
  /// chunk's words tell its contents.
  [[nodiscard]] std::optional<ChunkId> take_chunk();
  /// Divides an own chunk in which all slots are free. If a word beyond these slots is not free, it
  /// is damaged; its slot is evicted or quarantined.
  void divide(ChunkId chunk, const ChunkShape& shape);
  /// Gives up an own chunk: it has no owner any more. Readable slots stay readable; if there are
  /// none, the chunk counts as never divided. If a slot of it is filling, returns false and keeps
  /// the chunk, because a device could write the slot for longer than any other instance would
  /// wait.
  [[nodiscard]] bool give_up(ChunkId chunk);
  /// Evicts the contents of an own chunk, of any name space. Returns whether all of its slots are
  /// free now.
  [[nodiscard]] bool clear(ChunkId chunk);
  /// Tries to free a slot in an own chunk that this instance cannot use: evicts it if no instance
  /// reads it, frees it if its quarantine is over. An impossible word, or one that is filling
  /// although no device fills it, is damaged: the slot is quarantined and counted. Returns whether
  /// the slot is free now.
  [[nodiscard]] bool make_free(SlotPlace place);
  [[nodiscard]] bool owns(ChunkId chunk) const { return records_.owns(chunk); }

  // ---- slots of own chunks ----

  [[nodiscard]] SharedSlot slot(SlotPlace place) const { return records_.slot(place); }
  /// free -> filling. Returns false if it is not free yet.
  [[nodiscard]] bool begin_fill(SlotPlace place);
  /// readable -> filling. Returns false if an instance reads it.
  [[nodiscard]] bool refill(SlotPlace place);
  /// filling -> readable. Other instances find it from now on under that key. The hint to the
  /// slot's earlier key is removed, because wrong hints would take the places of right ones.
  void publish(SlotPlace place, const BlockKey& key) {
    publish(place, key, prepare_publish(place, key));
  }
  /// The same in two steps. The first one, on a slot that is filling, prefetches the lines that the
  /// second one changes.
  struct HintChange {
    std::optional<std::uint64_t> before;  ///< Hash of the slot's earlier key, if there was one.
    std::uint64_t now = 0;
  };
  [[nodiscard]] HintChange prepare_publish(SlotPlace place, const BlockKey& key) const;
  void publish(SlotPlace place, const BlockKey& key, const HintChange& change);
  /// readable -> free. Returns false if an instance reads it.
  [[nodiscard]] bool evict(SlotPlace place);
  /// The bytes of a slot, which this instance owns or has leased, are not what was stored
  /// (SharedSlot::withdraw()). Its owner learns of it in tend().
  void withdraw(SlotPlace place);
  /// Whether another instance has withdrawn a slot of an own chunk since the last call for that
  /// chunk.
  [[nodiscard]] bool take_withdrawals(ChunkId chunk);
  /// Prefetches the lines that evict(), begin_fill(), refill() and publish() change.
  void prefetch(SlotPlace place) const { records_.prefetch(place); }
  /// Prefetches the line of hints that publish() of the key changes.
  void prefetch_to_change(const BlockKey& key) const {
    records_.hints().prefetch_to_change(records_.hash_of(key));
  }

  // ---- other instances ----

  /// Checks whether there is anything that leases() could find. If not, leases() find nothing until
  /// the next call. Called from time to time, from one thread at a time; O(chunks). Returns the
  /// number of chunks without an owner that this instance could take, as far as it has looked.
  std::uint32_t look_around();

  /// Cleans up after instances without a living process: ends their leases, quarantines the slots
  /// that they were filling, and removes the owner from their chunks. Its time is bounded by the
  /// tier's size. If the process dies during a sweep, the next sweep starts over.
  SweepReport sweep();
  /// Frees slots of own chunks whose quarantine this instance has seen for longer than the grace
  /// period: copies of a process that is gone end within it. Returns the number of slots.
  std::uint64_t free_quarantined();
  /// The same for one slot. Returns whether it was freed.
  [[nodiscard]] bool free_quarantined(SlotPlace place);

  /// Number of words, chunk records and instance records that this instance found damaged and
  /// repaired.
  [[nodiscard]] std::uint64_t num_damaged() const {
    return num_damaged_.load(std::memory_order_relaxed);
  }

  // ---- fairness ----

  /// Announces the number of chunks that this instance would like to have, and how long its next
  /// victim has been unused.
  void tell(std::uint32_t num_wanted_chunks, std::chrono::seconds coldest_age);
  /// Number of chunks that this instance should give up now for others (chunk_fairness.hpp).
  [[nodiscard]] std::uint32_t num_chunks_to_give();
  [[nodiscard]] std::uint32_t num_own_chunks() const {
    return records_.own_record().num_chunks.load(std::memory_order_relaxed);
  }

 private:
  using Time = std::chrono::steady_clock::time_point;

  /// Whether a slot of a chunk without an owner is read, or may still be written: then nobody can
  /// clear the chunk now.
  [[nodiscard]] bool is_in_use(ChunkId chunk) const;
  /// Records by this process's clock when this instance first saw the current quarantine of the
  /// chunk.
  void note_quarantine(ChunkId chunk);
  /// Whether the grace period of the quarantined slots in an own chunk is over.
  [[nodiscard]] bool is_over(ChunkId chunk) const;
  [[nodiscard]] Time now() const { return clock_ ? clock_() : std::chrono::steady_clock::now(); }
  /// Takes the name's lock, and makes sure that no record of an earlier instance of that name is
  /// left.
  void take_name(const Identity& identity);
  [[nodiscard]] bool claim_record(const Identity& identity);
  // Repair of metadata that were damaged while no instance used them (tier_repair.cpp):
  /// Turns records that no instance can hold into records of a dead instance, for sweep().
  void mend_instances();
  /// Removes owners that do not exist from chunks, and clears this instance's bit everywhere.
  void mend_chunks();
  /// Checks slots of an own chunk that no instance could lease so far. They should all be free. A
  /// slot that is not is evicted, or else quarantined and counted as damaged.
  void mend_slots(ChunkId chunk, std::uint32_t first, std::uint32_t end);
  [[nodiscard]] bool is_stale(ChunkOwner owner) const;
  /// Clears the lease bits of these instances, which do not exist, in all words.
  void end_stray_leases(std::uint32_t lessees);
  /// Turns the record with the lock word `base` into one after which sweep() cleans up. Returns
  /// false if the record has changed.
  [[nodiscard]] bool declare_dead(InstanceId instance, std::uint64_t base);
  /// Restarts the grace period of an own chunk, because slots of it are about to be quarantined.
  void begin_quarantine(ChunkId chunk);
  void note_damage() { num_damaged_.fetch_add(1, std::memory_order_relaxed); }

  /// Cleans up after an instance whose death is proven, or which leaves.
  void clean_up_after(InstanceId gone, SweepReport& report);

  /// The time since which this process has known of a chunk's quarantine.
  struct SeenQuarantine {
    std::optional<std::uint64_t> number;  ///< ChunkRecord::num_quarantines.
    Time since;
    bool is_freed = false;
  };
  /// The time at which this process last saw a new announcement of another instance.
  struct SeenWord {
    std::uint32_t number = 0;  ///< InstanceRecord::num_told.
    Time since;
  };

  const LockFile file_;
  /// Held before the record is claimed, and until it is free. Always set after construction.
  std::optional<MemberLock> lock_;
  TierRecords records_;
  PeerLeases leases_;
  const std::chrono::nanoseconds grace_;
  const std::function<Time()> clock_;
  std::vector<SeenQuarantine> seen_quarantines_;  ///< By chunk.
  std::vector<std::uint64_t> seen_withdrawals_;   ///< By chunk.
  std::array<SeenWord, kMaxInstances> seen_words_{};
  std::atomic<std::uint64_t> num_damaged_{0};
  std::uint32_t next_chunk_ = 0;
};

}  // namespace kvferry::cpu_tier
