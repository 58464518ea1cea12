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

/// What has been cleaned up after instances that are gone.
struct SweepReport {
  std::uint32_t num_instances = 0;
  std::uint32_t num_orphaned_chunks = 0;
  std::uint64_t num_quarantined_slots = 0;
  std::uint64_t num_ended_leases = 0;
};

/// What one engine instance does with the metadata of a shared tier: it owns chunks, fills and
/// evicts their slots, and cleans up after instances that are gone. There is no lock in it but the
/// instances' proofs of life: a process that is stopped or killed anywhere blocks no other.
///
/// The memory, the metadata of `file`, outlives it. leases() and records() are for any thread; all
/// else, which the owner of a chunk does, is for one at a time.
class TierDirectory {
 public:
  struct Identity {
    /// Unique on the node for every start of an engine.
    std::string name;
    /// Of model, layout and all else that the bytes of a block depend on, as far as it is known
    /// when the instance joins; see narrow_name_space().
    std::uint64_t name_space = 0;
    /// Of the memory in use, in proportion to the others'.
    std::uint32_t weight = 1;
    /// 0: all.
    std::uint32_t most_chunks = 0;
    /// How long copies of a process that is gone may still go on at most: what it was filling stays
    /// in quarantine for as long. A driver ends them as it ends the process's contexts: in
    /// milliseconds; this is for one that is slow.
    /// Counted from when this instance first saw the quarantine, by its own clock.
    std::chrono::nanoseconds grace = std::chrono::seconds(30);
    /// For tests; empty: std::chrono::steady_clock::now.
    std::function<std::chrono::steady_clock::time_point()> clock = {};
  };

  /// Sweeps, and joins as member 0 of the name. Throws ResourceError if kMaxInstances live already,
  /// naming them, or if ranks of an earlier instance of that name live on; and as MemberLock.
  TierDirectory(std::span<std::byte> metadata, const TierPlaces& places, const TierShape& shape,
                LockFile file, const Identity& identity);
  /// Leaves: what it has committed stays for others and for later. If none of its ranks lives, what
  /// sweep() does: its chunks have no owner then. Else its ranks may still write and read what they
  /// were told to, so that its chunks, filling slots and leases stay what they are until a sweep
  /// finds the last rank gone.
  ~TierDirectory();
  TierDirectory(const TierDirectory&) = delete;
  TierDirectory& operator=(const TierDirectory&) = delete;

  [[nodiscard]] InstanceId self() const { return records_.self(); }
  /// What is in the metadata.
  [[nodiscard]] const TierRecords& records() const { return records_; }
  /// Leases on slots of other instances, or of no owner.
  [[nodiscard]] PeerLeases& leases() { return leases_; }
  [[nodiscard]] const PeerLeases& leases() const { return leases_; }
  /// Chunks [0, num_chunks) are ready on all ranks of this instance: no others are leased or taken.
  void set_reach(std::uint32_t num_chunks) { records_.set_reach(num_chunks); }
  /// The bytes of a block depend on `by`, too: from now on the name space is that of the instances
  /// that said the same. Before anything is stored, leased or looked for.
  void narrow_name_space(std::uint64_t by);
  /// What others store is of no use to this instance any more, nor what it stores to them: from now
  /// on its name space is its alone. None of its slots is readable, nor will be by what fills it.
  void leave_name_space();

  // ---- chunks ----

  /// Takes a chunk without an owner: one that was never divided or holds nothing of worth first,
  /// else one that holds what an instance left. Looks at a bounded number; nothing if none of those
  /// can be had, or this instance has as many as it may. What is in it is said by its words.
  [[nodiscard]] std::optional<ChunkId> take_chunk();
  /// Divides an own chunk, all of whose slots are free. Words beyond them that are not are damage:
  /// evicted, or quarantined.
  void divide(ChunkId chunk, const ChunkShape& shape);
  /// Gives up an own chunk: it has no owner any more. What is readable in it stays so; if nothing
  /// is, it is as if it had never been divided. False, and it stays own, if a slot of it is
  /// filling: a device may write it for longer than any other instance would wait.
  [[nodiscard]] bool give_up(ChunkId chunk);
  /// Evicts what an own chunk holds, of whatever name space. Whether all of its slots are free now.
  [[nodiscard]] bool clear(ChunkId chunk);
  /// Of a slot in an own chunk that this instance has no use of: evicted, if no instance reads it;
  /// freed, if its quarantine is over. A word that cannot be, or that is filling though no device
  /// fills it, is damage: quarantined, and counted. Whether the slot is free now.
  [[nodiscard]] bool make_free(SlotPlace place);
  [[nodiscard]] bool owns(ChunkId chunk) const { return records_.owns(chunk); }

  // ---- slots of own chunks ----

  [[nodiscard]] SharedSlot slot(SlotPlace place) const { return records_.slot(place); }
  /// free -> filling. False if it is not free yet.
  [[nodiscard]] bool begin_fill(SlotPlace place);
  /// readable -> filling. False if an instance reads it.
  [[nodiscard]] bool refill(SlotPlace place);
  /// filling -> readable, and found by others from now on under that key. The hint to what the slot
  /// held before goes: hints that are wrong come to take the places of those that are right.
  void publish(SlotPlace place, const BlockKey& key) {
    publish(place, key, prepare_publish(place, key));
  }
  /// The same in two steps: what the second changes is fetched by the first, on a slot that is
  /// filling.
  struct HintChange {
    std::optional<std::uint64_t> before;  ///< Hash of what the slot held, if anything.
    std::uint64_t now = 0;
  };
  [[nodiscard]] HintChange prepare_publish(SlotPlace place, const BlockKey& key) const;
  void publish(SlotPlace place, const BlockKey& key, const HintChange& change);
  /// readable -> free. False if an instance reads it.
  [[nodiscard]] bool evict(SlotPlace place);
  /// What evict(), begin_fill(), refill() and publish() change, to be used soon.
  void prefetch(SlotPlace place) const { records_.prefetch(place); }
  /// The line of hints that publish() of the key changes, to be used soon.
  void prefetch_to_change(const BlockKey& key) const {
    records_.hints().prefetch_to_change(records_.hash_of(key));
  }

  // ---- other instances ----

  /// Looks whether there is anything that leases() could find: until the next time they find
  /// nothing if there was not. Called now and then, from one thread at a time; O(chunks). Returns
  /// the number of chunks without an owner that this instance could take.
  std::uint32_t look_around();

  /// Ends the leases of instances that have no living process, puts what they were filling in
  /// quarantine, and takes the owner from their chunks. Bounded in time by the tier's size; may end
  /// anywhere and is begun anew by the next.
  SweepReport sweep();
  /// Frees what has been in quarantine for longer than the grace in own chunks, as far as this
  /// instance has seen it: copies of a process that is gone end within it. Returns how many slots.
  std::uint64_t free_quarantined();
  /// The same of one slot: whether it was freed.
  [[nodiscard]] bool free_quarantined(SlotPlace place);

  /// Words, chunk records and instance records that this instance found damaged and put in order.
  [[nodiscard]] std::uint64_t num_damaged() const {
    return num_damaged_.load(std::memory_order_relaxed);
  }

  // ---- fairness ----

  /// Says what this instance would like to have, and for how long what it would evict next has not
  /// been used.
  void tell(std::uint32_t num_wanted_chunks, std::chrono::seconds coldest_age);
  /// Chunks that this instance should give up now, for others (chunk_fairness.hpp).
  [[nodiscard]] std::uint32_t num_chunks_to_give();
  [[nodiscard]] std::uint32_t num_own_chunks() const {
    return records_.own_record().num_chunks.load(std::memory_order_relaxed);
  }

 private:
  using Time = std::chrono::steady_clock::time_point;

  /// Notes by the own clock when this instance first saw what is in quarantine there now.
  void note_quarantine(ChunkId chunk);
  /// Whether the grace of what an own chunk has in quarantine is over.
  [[nodiscard]] bool is_over(ChunkId chunk) const;
  [[nodiscard]] Time now() const { return clock_ ? clock_() : std::chrono::steady_clock::now(); }
  /// Holds the name's lock, with no record of an earlier instance of that name.
  void take_name(const Identity& identity);
  [[nodiscard]] bool claim_record(const Identity& identity);
  // Of metadata that were damaged while no instance used them (tier_repair.cpp):
  /// Makes records that no instance can hold such of a dead one, for sweep().
  void mend_instances();
  /// Takes the owner from chunks whose owner is no instance, and clears this instance's bit
  /// everywhere.
  void mend_chunks();
  /// Of an own chunk, slots that no instance could lease so far: all are free, or else damaged.
  void mend_slots(ChunkId chunk, std::uint32_t first, std::uint32_t end);
  [[nodiscard]] bool is_stale(ChunkOwner owner) const;
  /// Ends what leases the words say that these instances have, of those that are none.
  void end_stray_leases(std::uint32_t lessees);
  /// Makes the record, whose lock word is `base`, one that sweep() cleans up after. False if it
  /// has changed.
  [[nodiscard]] bool declare_dead(InstanceId instance, std::uint64_t base);
  /// Slots of a chunk, an own one, are about to be quarantined: the grace begins anew.
  void begin_quarantine(ChunkId chunk);
  void note_damage() { num_damaged_.fetch_add(1, std::memory_order_relaxed); }

  /// After the instance, whose death is proven, or which leaves.
  void clean_up_after(InstanceId gone, SweepReport& report);

  /// Since when this process has known of a chunk's quarantine.
  struct SeenQuarantine {
    std::optional<std::uint64_t> number;  ///< ChunkRecord::num_quarantines.
    Time since;
    bool is_freed = false;
  };
  /// When this process last saw another instance say something new.
  struct SeenWord {
    std::uint32_t number = 0;  ///< InstanceRecord::num_told.
    Time since;
  };

  const LockFile file_;
  /// Before the record is claimed, and until it is free. Always there once this is made.
  std::optional<MemberLock> lock_;
  TierRecords records_;
  PeerLeases leases_;
  const std::chrono::nanoseconds grace_;
  const std::function<Time()> clock_;
  std::vector<SeenQuarantine> seen_quarantines_;  ///< By chunk.
  std::array<SeenWord, kMaxInstances> seen_words_{};
  std::atomic<std::uint64_t> num_damaged_{0};
  std::uint32_t next_chunk_ = 0;
};

}  // namespace kvferry::cpu_tier
