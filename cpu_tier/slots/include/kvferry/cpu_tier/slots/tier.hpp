// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/base/mutex.hpp"
#include "kvferry/base/result.hpp"
#include "kvferry/cpu_tier/memory/arena_options.hpp"
#include "kvferry/cpu_tier/policy/tier_options.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/peers.hpp"
#include "kvferry/cpu_tier/slots/slot_set.hpp"
#include "kvferry/cpu_tier/slots/tier_snapshot.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

/// The metadata of the CPU tier: which slot holds which block, and in which state it is. The bytes
/// are in the ranks' arenas (cpu_tier/memory).
///
/// Slot states. free -> writable (reserved by one transfer) -> readable (committed) -> free
/// (evicted). writable -> aborted (key forgotten, a device could still write) -> free. aborted ->
/// quarantined -> free. readable and leased -> dying (key forgotten, still leased) -> free, or
/// quarantined for good if its bytes were found not to be what was stored. A readable slot without
/// a lease is evictable.
namespace kvferry::cpu_tier {

/// The tier reserved no slot for the keys. This is not a failure. Without `present` the tier is
/// exhausted: offer the blocks again later. Side effects of the attempt stay: chunks can have come
/// from other classes, and blocks can have been evicted before the tier found that peers use the
/// others.
struct NotReserved {
  /// Slots that were available for these keys at that moment: free plus evictable slots, at most
  /// one per key.
  std::uint32_t num_available = 0;
  /// Index of the first key that the tier holds already, writable or readable.
  std::optional<std::size_t> present = std::nullopt;
};

/// A key that should be leased is not readable.
struct NotReadable {
  std::size_t first = 0;  ///< Index of the first such key, if keys were given.
};

/// The result of a lookup: a readable prefix. Valid as long as the eviction epoch of its class does
/// not change.
struct PrefixHit {
  std::uint64_t eviction_epoch = 0;
  std::vector<SlotId> slots = {};
  SlabClassId slab_class = SlabClassId(0);
  [[nodiscard]] std::size_t size() const { return slots.size(); }
};

/// The state of a key.
enum class KeyState : std::uint8_t { kAbsent, kWritable, kReadable };

/// A key became readable, or is no longer readable. The key is given without its weights.
struct KeyEvent {
  BlockKey key;
  bool readable = false;
  bool operator==(const KeyEvent&) const = default;
};

/// The decision about a block that is offered for a store.
enum class OfferAnswer : std::uint8_t {
  kHeld,     ///< The tier has it, or a store of it is under way.
  kStore,    ///< Store it: reserve a slot now or later.
  kDeclined  ///< Not worth its store now; it is remembered for the next offer.
};

class Tier;

/// Slots that were taken all-or-nothing, in the order of the keys, and that no device knows yet.
/// Move-only. Dropping the reservation, on any thread, releases all of them. `hand_over()` passes
/// them to a transfer.
class [[nodiscard]] Reservation {
 public:
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

  [[nodiscard]] std::span<const SlotId> slots() const { return slots_.slots(); }
  /// After this call a device can be given the slots.
  [[nodiscard]] WritableSlots hand_over() &&;

 private:
  friend class Tier;
  Reservation(Tier* tier, WritableSlots slots) : tier_(tier), slots_(std::move(slots)) {}
  void give_back();

  Tier* tier_;
  WritableSlots slots_;
};

/// The metadata of a tier's memory. The memory consists of chunks. Each chunk belongs to one slab
/// class, which divides it into slots of its own size, or to no class. A model whose blocks all
/// have the same size has one class. Slot `s` of a class lies in chunk s / slots_per_chunk.
///
/// A class that has no free slots for a store gets a chunk in one of three ways, in this order.
/// First, it takes a chunk without an owner. Second, if its own blocks are evicted at a much
/// younger age than another class's blocks lie unused, it takes the coldest chunk of that class, at
/// most one chunk for each chunk of blocks that it evicts. Third, if even evicting all of its own
/// blocks would not be enough, it takes as many cold chunks as it needs. A chunk with a slot that
/// is neither free nor evictable stays with its class; meanwhile other classes cannot use its free
/// and evictable slots. A chunk wastes less than one slot at its end. (The search for a chunk is
/// bounded; the next attempt continues where it stopped.)
///
/// Peers connects the tier with other processes that use the same memory. In a tier that engines
/// share, this object has only the chunks that it has taken. It takes chunks without an owner when
/// it needs some, and keeps their contents if they are of its own name space. It gives up its
/// coldest chunks when other engines should have them (tend()). A block that a peer reads is not
/// evicted, and one that a peer has read recently is evicted later, so reserve() can find less room
/// than the counts suggest. Blocks of peers can be looked up and leased like its own, but do not
/// count among its slots.
///
/// Thread-safe: every call is one atomic step under one mutex (G5). Arrays are allocated before the
/// mutex is locked and freed after it is unlocked. A set or a lease is used by one thread at a
/// time, which can be any thread. Between two calls of a thread, other threads can call: a key that
/// was found can be gone, and an absent key can be present. So reserve() and lease() check again,
/// and return the result by value. A slot in a different state than its set says is a broken
/// invariant. Only construction, add_class(), lookup_prefix(), reserve() and lease() throw
/// (std::bad_alloc; then nothing has changed).
class Tier {
 public:
  static constexpr std::uint32_t kMaxClasses = 128;

  /// Makes a tier that can grow to `max_chunks`, with these slab classes; each class could use all
  /// of the memory. No chunk is usable yet. If there is only one class, it gets all chunks as they
  /// become usable; several classes take them as they need them. `options` apply to each class.
  /// Throws as add_class(), and ConfigError for options out of range.
  Tier(std::uint32_t max_chunks, std::span<const std::uint32_t> slots_per_chunk,
       const TierOptions& options = {}, std::unique_ptr<Peers> peers = no_peers());
  /// Every set and lease must have been given back or left behind; otherwise an invariant is
  /// broken.
  ~Tier();
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  /// Adds a class. Throws ConfigError for 0, above kMaxClasses classes and above
  /// BlockIndex::kMaxSlots slots.
  SlabClassId add_class(std::uint32_t slots_per_chunk);
  [[nodiscard]] std::uint32_t num_classes() const;
  /// Makes chunks [0, num_chunks) usable; never fewer than before, at most max_chunks.
  void grow_to(std::uint32_t num_chunks);
  /// Adds `by` to the things on which the bytes of a block depend (0: adds nothing). Only peers
  /// with the same values find each other's blocks. Call it before anything is stored or looked up.
  void narrow_name_space(std::uint64_t by);
  /// From now on this tier has a name space of its own: no peer finds its blocks, and it finds no
  /// blocks of peers. Call it after forget_all() if earlier blocks must not come back.
  void leave_name_space();

  // ---- policy ----

  /// Offers the blocks of one request, or of a part of it, in order and once per request, whether
  /// they were computed, loaded or found. Blocks that the tier holds are touched. For the others,
  /// the tier decides whether they should be stored. An adaptive policy learns from this stream of
  /// offers (not from lookups, which a waiting request repeats: vllm#52227). Takes no slot and
  /// evicts nothing. For an admitted block the caller reserves a slot when there is room for its
  /// copy, without offering it again. While the tier has free slots, or has no slots yet, it admits
  /// as many blocks as these slots can hold. `answers[i]` is for `keys[i]`; the spans have the same
  /// length. The blocks with the answer kStore are the first ones of the absent blocks.
  void offer(SlabClassId of, std::span<const BlockKey> keys, std::span<OfferAnswer> answers);
  /// Announces a queued request with these blocks. Those that the tier holds and that are not
  /// leased are evicted after all others, until they are leased or touched. This applies to as many
  /// blocks as max_awaited_share allows, the latest requests and the beginnings of their prompts
  /// first. It lasts for one turnover of the tier at most, so a request that never runs is
  /// forgotten. It never makes a reservation fail.
  void await(SlabClassId of, std::span<const BlockKey> keys);
  /// The same for a hit, without another lookup. Does nothing if any key of the class has stopped
  /// being readable since.
  void await(const PrefixHit& hit);
  /// Withdraws an announcement by await(), because the request will not run. Blocks for which no
  /// other request waits become ordinary blocks that were just used. For keys that were not
  /// readable when they were announced, or that were leased or touched since, this can also end
  /// another request's wait.
  void end_await(SlabClassId of, std::span<const BlockKey> keys);

  // ---- store ----

  /// Takes one slot for each key, and evicts the coldest evictable slots if none is free. It takes
  /// slots for all keys, or for none and returns NotReserved, because there is no room or a key is
  /// not absent. The keys are distinct. Afterwards each key is kWritable. Chunks can come from
  /// other classes; blocks in them are evicted. With NotReserved the keys are unchanged, and chunks
  /// that came and slots that were evicted stay free for the next attempt.
  [[nodiscard]] Result<Reservation, NotReserved> reserve(SlabClassId of,
                                                         std::span<const BlockKey> keys);
  /// writable -> readable and evictable. The set is a prefix in order, whose head leaves last, or a
  /// later part of a prefix. In the second case `predecessor` is the key before its head, and the
  /// set leaves right before that key, so a prefix that was stored in parts also leaves from its
  /// tail. Without an evictable predecessor the set becomes the most recent.
  void commit(WritableSlots&& slots, const std::optional<BlockKey>& predecessor = std::nullopt);
  /// writable -> aborted: the keys are absent from now on and can be reserved again; the slots are
  /// not reused.
  [[nodiscard]] AbortedSlots abort(WritableSlots&& slots);
  /// aborted -> free: no device can touch them any more.
  void release(AbortedSlots&& slots);
  /// aborted -> quarantined.
  [[nodiscard]] QuarantinedSlots quarantine(AbortedSlots&& slots);
  /// quarantined -> free, on proof that no device can touch them.
  void release(QuarantinedSlots&& slots);

  // ---- load ----

  /// The longest prefix of `keys` that is readable. Leases and touches nothing. `known`: an earlier
  /// answer for keys with the same beginning; the part of it that is still valid is not searched
  /// again.
  [[nodiscard]] PrefixHit lookup_prefix(SlabClassId of, std::span<const BlockKey> keys,
                                        PrefixHit known = {}) const;
  /// State of each key: `states[i]` is for `keys[i]`; the spans have the same length.
  void lookup(SlabClassId of, std::span<const BlockKey> keys, std::span<KeyState> states) const;
  /// Takes one lease on each key, in order: on all of them, or on none and returns NotReadable. A
  /// slot can have many leases. For threads that share a tier: lookup and lease are one step.
  [[nodiscard]] Result<Lease, NotReadable> lease(SlabClassId of, std::span<const BlockKey> keys);
  /// Takes one lease on each of the first `count` (at most size()) slots of a hit, without another
  /// lookup. Returns NotReadable if any key of the class has stopped being readable since. For a
  /// thread that alone decides what is evicted.
  [[nodiscard]] Result<Lease, NotReadable> lease(const PrefixHit& hit, std::size_t count);
  /// Ends the leases. When its last lease ends, a slot becomes evictable and the most recent, or
  /// free if it was dying. The set is a prefix in order and is touched from its tail to its head,
  /// so tails leave first.
  void release(Lease&& lease);
  /// Marks the readable keys of a prefix in order as recently used, from its tail to its head;
  /// ignores the others.
  void touch(SlabClassId of, std::span<const BlockKey> keys);
  /// Makes the leased slots unreadable at once, because their bytes are in doubt. They are freed
  /// when their last lease ends. Slots that are already dying stay so.
  void forget(const Lease& lease);
  /// Forgets every readable key, and all guests. The owners of writable slots abort them. O(slots);
  /// every other call waits meanwhile. `of`: forgets only keys of these weights, and no guests.
  void forget_all(std::optional<WeightsId> of = std::nullopt);

  // ---- steps, and what is done between them ----

  /// Between hold_still() and end_step() only reserve() evicts, so blocks that lookups find can be
  /// leased. end_step() does the work that tend() had to postpone, a few chunks at a time, so an
  /// engine that is always in a step does not starve its peers.
  void hold_still();
  void end_step();
  /// Call it a few times per second if there are peers, from any thread, one at a time. It
  /// announces this tier's state to the peers and frees slots that were set aside. Unless the tier
  /// holds still, it also forgets what peers have withdrawn, releases guests that lookups found and
  /// no request used, and gives up chunks that peers should have.
  void tend(std::chrono::steady_clock::time_point now);

  // ---- the end ----

  /// For an owner that ends while devices could still write or read these slots. If the memory
  /// outlives the tier, the slots have no owner until no process of this engine lives: slots that
  /// could be written stay filling, slots that could be read stay leased. Otherwise they are
  /// released, because the memory is freed too.
  void leave_behind(AbortedSlots&& slots);
  void leave_behind(QuarantinedSlots&& slots);
  void leave_behind(Lease&& lease);

  /// The key of a slot that the caller holds as writable or leased, and has not forgotten.
  [[nodiscard]] BlockKey key(SlabClassId of, SlotId slot) const;
  /// Rises whenever a readable key stops being readable. While it stays the same, an answer of
  /// lookup_prefix() can only have become longer.
  [[nodiscard]] std::uint64_t eviction_epoch() const;
  /// The keys that became readable, or stopped being readable, since the last call, as the engine's
  /// own keys. The events of one key are in order. Empty without TierOptions::key_events. Only keys
  /// of these weights are reported. If the last call was for other weights, the events say that the
  /// keys of those are no longer readable.
  [[nodiscard]] std::vector<KeyEvent> take_key_events(WeightsId of = WeightsId());
  /// The counts of all classes together. Chunks of no class count as free slots of the first class.
  [[nodiscard]] TierSnapshot snapshot() const;
  /// How many chunks and slots each class has.
  [[nodiscard]] SlabSnapshot slab_snapshot() const;
  /// Name of the rule that a class uses now (policy_rule.hpp); ARC's admission has a name too.
  [[nodiscard]] const char* rule_name(SlabClassId of) const;

  /// Checks all slots, lists, keys and chunks; any inconsistency is a broken invariant. For tests.
  void check_invariants() const;

 private:
  friend class Reservation;
  friend class TierPromises;     // Clients' hints about blocks (tier_promises.hpp).
  friend class TierWithdrawals;  // Slots whose bytes are damaged (tier_withdrawals.hpp).
  friend class TierMoves;        // What happened to keys, for a recorder (tier_moves.hpp).
  friend class RetirableChunks;  // Takes chunks out of use, and back (retirable_chunks.hpp).
  /// A SlotClass with its chunks and their ages.
  struct SlabClass;
  static constexpr std::uint8_t kNoClass = 0xff;
  static constexpr std::uint8_t kRetired = 0xfe;
  static_assert(kMaxClasses < kRetired);

  [[nodiscard]] SlabClass& at(SlabClassId of) const KVFERRY_REQUIRES(mutex_);
  SlabClassId make_class(std::uint32_t slots_per_chunk) KVFERRY_REQUIRES(mutex_);
  /// writable -> free: no device knows the slots.
  void give_back(WritableSlots&& slots);
  /// Gets chunks for `count` slots, as far as the rules above allow.
  void make_room(std::uint32_t of, std::uint32_t count) KVFERRY_REQUIRES(mutex_);
  /// Gets a chunk without an owner for the class, and returns how many free slots it brought.
  /// Nothing if no such chunk is available.
  [[nodiscard]] std::optional<std::uint32_t> add_chunk(std::uint32_t of) KVFERRY_REQUIRES(mutex_);
  /// The class whose blocks are in a chunk that was just taken; kNoClass if it is not a class of
  /// this tier.
  [[nodiscard]] std::uint8_t class_in(const TakenChunks& taken) const KVFERRY_REQUIRES(mutex_);
  /// Assigns own chunks of no class to the class. Returns false if they cannot be divided; then the
  /// tier has given them up.
  [[nodiscard]] bool attach(std::uint32_t of, const TakenChunks& chunks) KVFERRY_REQUIRES(mutex_);
  /// Takes a chunk away from its class; the tier still owns it. Returns false if a slot of it is
  /// named.
  [[nodiscard]] bool detach(ChunkId chunk) KVFERRY_REQUIRES(mutex_);
  /// Detaches the coldest chunk of another class, if it has been unused for at least `least_age`.
  [[nodiscard]] std::optional<ChunkId> detach_coldest(std::uint32_t for_class,
                                                      std::uint32_t least_age)
      KVFERRY_REQUIRES(mutex_);
  /// Detaches any chunk of another class. The search continues where the last one ended.
  [[nodiscard]] std::optional<ChunkId> detach_any(std::uint32_t for_class) KVFERRY_REQUIRES(mutex_);
  /// The run for which RetirableChunks::retire_coldest() searches.
  [[nodiscard]] std::optional<ChunkRange> coldest_run(std::uint32_t run) const
      KVFERRY_REQUIRES(mutex_);
  /// Any run without a named slot. The search continues where the last one ended.
  [[nodiscard]] std::optional<ChunkRange> any_run(std::uint32_t run) KVFERRY_REQUIRES(mutex_);
  /// The run of a chunk; nothing if not all chunks of the run are usable yet.
  [[nodiscard]] std::optional<ChunkRange> run_of(ChunkId chunk, std::uint32_t run) const
      KVFERRY_REQUIRES(mutex_);
  /// How long no slot of the chunks has been used; nothing if one is retired or has a named slot.
  /// One block that a session still needs counts more than any number of cold ones: without it, the
  /// rest of its prompt cannot be loaded.
  [[nodiscard]] std::optional<std::uint32_t> age_of(ChunkRange chunks,
                                                    std::uint32_t age_of_free) const
      KVFERRY_REQUIRES(mutex_);
  /// A slot's age, as all classes count it.
  [[nodiscard]] std::uint32_t common_age(const SlabClass& of, std::uint32_t age) const
      KVFERRY_REQUIRES(mutex_);
  /// Gives class 0 the chunks that no class has, if it should have all.
  void attach_free() KVFERRY_REQUIRES(mutex_);
  void count_turnover(std::uint32_t of, std::size_t num_slots) KVFERRY_REQUIRES(mutex_);
  /// Chunks that some class has.
  [[nodiscard]] std::uint32_t num_attached() const KVFERRY_REQUIRES(mutex_);
  void mark_time(std::chrono::steady_clock::time_point now) KVFERRY_REQUIRES(mutex_);
  void drop_idle_guests(std::chrono::steady_clock::time_point now) KVFERRY_REQUIRES(mutex_);
  /// Gives up at most `most` of the owed chunks, the coldest first.
  void give_up(std::uint32_t most) KVFERRY_REQUIRES(mutex_);
  /// How long the block that is evicted next has been unused.
  [[nodiscard]] std::chrono::seconds coldest_age() const KVFERRY_REQUIRES(mutex_);

  const std::uint32_t max_chunks_;
  const TierOptions options_;
  mutable Mutex mutex_;
  const std::unique_ptr<Peers> peers_ KVFERRY_GUARDED_BY(mutex_);
  std::array<std::unique_ptr<SlabClass>, kMaxClasses> classes_ KVFERRY_GUARDED_BY(mutex_);
  std::uint32_t num_classes_ KVFERRY_GUARDED_BY(mutex_) = 0;
  const bool first_gets_all_;
  std::vector<std::uint8_t> class_of_chunk_
      KVFERRY_GUARDED_BY(mutex_);  ///< By chunk; kNoClass: no class has it; kRetired: out of use.
  std::size_t num_retired_ KVFERRY_GUARDED_BY(mutex_) = 0;  ///< The retired ones among them.
  std::uint32_t next_looked_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint32_t next_run_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Slots reserved since the ages of the classes were recorded, in chunks.
  double num_turned_over_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Read under the mutex, so every call after hold_still() sees what tend() did before.
  std::atomic<bool> holds_still_{false};
  /// Whether tend() found a step under way, and postponed some work.
  std::atomic<bool> is_due_{false};
  std::chrono::steady_clock::time_point due_since_ KVFERRY_GUARDED_BY(mutex_);
  /// Number of chunks that the tier could not get since the last tend().
  std::uint32_t num_wanted_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Number of chunks that peers should have, by the last tend().
  std::uint32_t num_owed_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::optional<std::chrono::steady_clock::time_point> marked_at_ KVFERRY_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point guests_dropped_at_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::cpu_tier
