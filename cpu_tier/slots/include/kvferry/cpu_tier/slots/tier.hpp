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

/// The metadata of the CPU tier: which slot holds which block, and what may be done with it. The
/// bytes are in the ranks' arenas (cpu_tier/memory).
///
/// Slot states. free -> writable (reserved by one transfer) -> readable (committed) -> free
/// (evicted). writable -> aborted (key forgotten, a device may still write) -> free. aborted ->
/// quarantined -> free. readable and leased -> dying (key forgotten, still leased) -> free. A
/// readable slot without a lease is evictable.
namespace kvferry::cpu_tier {

/// The tier took no slot for the keys: not a failure. Without `present` it is exhausted: offer the
/// blocks again later. What it did in the attempt stays: chunks may have come from other classes,
/// and blocks may have been evicted before it was found that peers use the others.
struct NotReserved {
  /// Slots that these keys could have got at that moment: free plus evictable ones, one per key at
  /// most.
  std::uint32_t num_available = 0;
  /// Index of the first key that the tier holds already, writable or readable.
  std::optional<std::size_t> present = std::nullopt;
};

/// A key that was to be leased is not readable.
struct NotReadable {
  std::size_t first = 0;  ///< Index of the first such key, where keys were given.
};

/// A readable prefix, as it was looked up: good as long as its class's eviction epoch stays.
struct PrefixHit {
  std::uint64_t eviction_epoch = 0;
  std::vector<SlotId> slots = {};
  SlabClassId slab_class = SlabClassId(0);
  [[nodiscard]] std::size_t size() const { return slots.size(); }
};

/// Where a key stands.
enum class KeyState : std::uint8_t { kAbsent, kWritable, kReadable };

/// A key became readable, or ceased to be: without the weights that it is of.
struct KeyEvent {
  BlockKey key;
  bool readable = false;
  bool operator==(const KeyEvent&) const = default;
};

/// What becomes of a block that is offered for a store.
enum class OfferAnswer : std::uint8_t {
  kHeld,     ///< The tier has it, or is getting it.
  kStore,    ///< To be reserved for, now or later.
  kDeclined  ///< Not worth its store now; it is remembered for the next offer.
};

class Tier;

/// Slots taken all-or-nothing, in the order of the keys, that no device has seen yet. Move-only;
/// dropping it, on any thread, gives all of them back. `hand_over()` passes them to a transfer.
class [[nodiscard]] Reservation {
 public:
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

  [[nodiscard]] std::span<const SlotId> slots() const { return slots_.slots(); }
  /// From here on a device may be told of them.
  [[nodiscard]] WritableSlots hand_over() &&;

 private:
  friend class Tier;
  Reservation(Tier* tier, WritableSlots slots) : tier_(tier), slots_(std::move(slots)) {}
  void give_back();

  Tier* tier_;
  WritableSlots slots_;
};

/// The metadata of one memory. It is in chunks; each chunk belongs to one slab class, which divides
/// it into slots of its own size, or to none. A model whose blocks are all of one size has one
/// class. Slot `s` of a class lies in chunk s / slots_per_chunk.
///
/// A class that has no free slots for what it wants to store gets a chunk that has no owner; else,
/// if its blocks are evicted much younger than another class's lie unused, the coldest chunk of
/// that one, a chunk for each chunk that it evicts at most; else, if it could not have its slots
/// even by evicting all of its own, as many cold chunks as that takes. A chunk with a slot that is
/// neither free nor evictable stays where it is. So a chunk wastes less than one slot at its end;
/// and while a class cannot have its slots, the free and evictable slots in such chunks of other
/// classes are of no use to it. (A look for a chunk is bounded; the next attempt goes on there.)
///
/// What other processes do with the same memory is said by Peers. Chunks of a tier that engines
/// share are those that this one has taken: it takes chunks without an owner when it needs some,
/// with what is in it if that is of its own name space, and gives up its coldest ones when others
/// are to have them (tend()). What a peer reads is not evicted, and what it has read lately only
/// later, so that reserve() may find less room than there seemed to be. Blocks of peers can be
/// looked up and leased like its own, and count nowhere among its slots.
///
/// Thread-safe: every call is one atomic step under one mutex (G5), and no thread sees half of one;
/// arrays are allocated before it is taken and freed after it is let go. A set or a lease is used
/// by one thread at a time, whichever. Between two calls of a thread others may come: what was
/// looked up may be gone, and a key that was absent present, so that reserve() and lease() decide
/// by themselves and say so by value. A slot found in another state than its set says is a broken
/// invariant. Nothing throws but construction, add_class(), lookup_prefix(), reserve() and lease()
/// (std::bad_alloc; nothing changed then).
class Tier {
 public:
  static constexpr std::uint32_t kMaxClasses = 128;

  /// A tier that can grow to `max_chunks`, with these slab classes, which each could have all of
  /// the memory; no chunk is usable yet. The only one of a single class gets chunks as they come,
  /// several get them as they want them. `options` are those of each class. Throws as add_class(),
  /// and ConfigError for options out of range.
  Tier(std::uint32_t max_chunks, std::span<const std::uint32_t> slots_per_chunk,
       const TierOptions& options = {}, std::unique_ptr<Peers> peers = no_peers());
  /// Every set and lease has been given back or left behind; one that is still out is a broken
  /// invariant.
  ~Tier();
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  /// One more class. Throws ConfigError for 0, above kMaxClasses classes and above
  /// BlockIndex::kMaxSlots slots.
  SlabClassId add_class(std::uint32_t slots_per_chunk);
  [[nodiscard]] std::uint32_t num_classes() const;
  /// Makes chunks [0, num_chunks) usable; never fewer than before, at most max_chunks.
  void grow_to(std::uint32_t num_chunks);
  /// The bytes of a block depend on `by`, too (0: on nothing more): peers that say the same find
  /// each other's blocks. Before anything is stored or looked for.
  void narrow_name_space(std::uint64_t by);
  /// From now on the name space is this tier's alone: no peer finds its blocks, and it finds no
  /// peer's. After forget_all(), if what was computed so far must not come back.
  void leave_name_space();

  // ---- policy ----

  /// The blocks of one request, or of a piece of it, in order and once per request, computed,
  /// loaded or found: what the tier holds of them is touched; for the others it says whether they
  /// are to be stored. This stream of offers is what an adaptive policy learns from (not lookups,
  /// which a waiting request repeats: vllm#52227). Takes nothing, evicts nothing. A block that is
  /// admitted is reserved for when there is room for its copy; it is not offered again for that. A
  /// tier with free slots, or none at all yet, admits what they will hold.
  /// `answers[i]` is for `keys[i]`; spans of one length. Those answered kStore are the first ones
  /// of the absent.
  void offer(SlabClassId of, std::span<const BlockKey> keys, std::span<OfferAnswer> answers);
  /// A request with these blocks waits for its turn: what the tier holds of them, and no
  /// lease is on, is evicted after everything else until it is leased or touched: as far as
  /// max_awaited_share allows, the latest requests and their heads first, and for the time of one
  /// turnover of the tier, in which a request that never came is forgotten. It never makes a
  /// reservation fail.
  void await(SlabClassId of, std::span<const BlockKey> keys);
  /// The same for a hit, without another lookup; nothing if any key of the class has ceased to be
  /// readable since.
  void await(const PrefixHit& hit);
  /// A request that was announced by await() will not come: what no other request waits for is from
  /// now on as any other block that was used just now. Of keys that were not readable when they
  /// were announced, or were leased or touched since, another request's wait may end too.
  void end_await(SlabClassId of, std::span<const BlockKey> keys);

  // ---- store ----

  /// Takes one slot per key, evicting the coldest evictable slots where none is free: all of them,
  /// or none and NotReserved because there is no room, or because a key is not absent. The keys are
  /// distinct. Afterwards each is kWritable. Chunks may come from other classes, whose blocks in
  /// them are evicted. With NotReserved the keys stand as before, and chunks that came and slots
  /// that were evicted stay free: the next attempt has them.
  [[nodiscard]] Result<Reservation, NotReserved> reserve(SlabClassId of,
                                                         std::span<const BlockKey> keys);
  /// writable -> readable and evictable. The set is a prefix in order, its head the last to leave,
  /// or a later piece of one: then `predecessor` is the key before its head, and the set leaves
  /// right before that, so that a prefix that was stored piece by piece leaves from its tail too.
  /// Without an evictable predecessor it is the most recent.
  void commit(WritableSlots&& slots, const std::optional<BlockKey>& predecessor = std::nullopt);
  /// writable -> aborted: the keys are absent from now on and may be reserved anew; the slots are
  /// not reused.
  [[nodiscard]] AbortedSlots abort(WritableSlots&& slots);
  /// aborted -> free: no device can touch them any more.
  void release(AbortedSlots&& slots);
  /// aborted -> quarantined.
  [[nodiscard]] QuarantinedSlots quarantine(AbortedSlots&& slots);
  /// quarantined -> free, on proof that no device can touch them.
  void release(QuarantinedSlots&& slots);

  // ---- load ----

  /// The longest prefix of `keys` that is readable. Takes nothing, touches nothing. `known`: an
  /// earlier answer for keys that began alike; what of it still holds is not searched for again.
  [[nodiscard]] PrefixHit lookup_prefix(SlabClassId of, std::span<const BlockKey> keys,
                                        PrefixHit known = {}) const;
  /// State of each key: `states[i]` for `keys[i]`; spans of one length.
  void lookup(SlabClassId of, std::span<const BlockKey> keys, std::span<KeyState> states) const;
  /// One lease on each key, in order: all, or none and NotReadable. A slot may have many leases.
  /// For threads that share a tier: lookup and lease are one step.
  [[nodiscard]] Result<Lease, NotReadable> lease(SlabClassId of, std::span<const BlockKey> keys);
  /// One lease on each of the first `count` (at most size()) slots of a hit, without another
  /// lookup; NotReadable if any key of the class has ceased to be readable since: for a thread that
  /// decides alone what is evicted.
  [[nodiscard]] Result<Lease, NotReadable> lease(const PrefixHit& hit, std::size_t count);
  /// Ends the leases. A slot's last one makes it evictable and most recent, or free if it was
  /// dying. The set is a prefix in order and is touched from its tail to its head, so that tails
  /// leave first.
  void release(Lease&& lease);
  /// Marks the readable keys of a prefix in order as recently used, from its tail to its head;
  /// ignores the others.
  void touch(SlabClassId of, std::span<const BlockKey> keys);
  /// The leased slots cease to be readable at once (their bytes are doubted); they are freed when
  /// their last lease ends. Slots that are dying already stay so.
  void forget(const Lease& lease);
  /// Forgets every readable key, and what was found of peers. Writable slots are their owners' to
  /// abort. O(slots), during which every other call waits.
  /// `of`: of the keys of these weights alone, and nothing of peers.
  void forget_all(std::optional<WeightsId> of = std::nullopt);

  // ---- steps, and what is done between them ----

  /// From now on to end_step() nothing is evicted but by reserve(): what lookups find can be
  /// leased. end_step() does what tend() had to leave, a few chunks at a time: an engine that is
  /// always found in a step starves no peer.
  void hold_still();
  void end_step();
  /// To be called a few times per second if there are peers, from any thread but one at a time:
  /// tells the others how this tier stands, frees what was set aside, and, unless it is to hold
  /// still, lets go of what was found for lookups and not used, and gives up chunks that others are
  /// to have.
  void tend(std::chrono::steady_clock::time_point now);

  // ---- the end ----

  /// The tier's owner ends, and devices may go on to write or read these slots. Of a memory that
  /// outlives the tier they have no owner until no process of this one lives: what may be written
  /// stays filling, what may be read stays leased. Else they are released, as the memory goes too.
  void leave_behind(AbortedSlots&& slots);
  void leave_behind(QuarantinedSlots&& slots);
  void leave_behind(Lease&& lease);

  /// The key of a slot that the caller has as writable or leased, and has not forgotten.
  [[nodiscard]] BlockKey key(SlabClassId of, SlotId slot) const;
  /// Moves on whenever a readable key ceases to be readable. While it stays, an answer of
  /// lookup_prefix() can only have become longer.
  [[nodiscard]] std::uint64_t eviction_epoch() const;
  /// What became readable or ceased to be since the last call; of one key in order, as the engine
  /// has it. Nothing without TierOptions::key_events. Of the keys of these weights: if the last
  /// call was for others, theirs cease to be readable, as far as events tell.
  [[nodiscard]] std::vector<KeyEvent> take_key_events(WeightsId of = WeightsId());
  /// Of all classes together; chunks of no class count as free slots of the first.
  [[nodiscard]] TierSnapshot snapshot() const;
  /// How many chunks and slots each class has.
  [[nodiscard]] SlabSnapshot slab_snapshot() const;
  /// Name of the rule that decides now for a class (policy_rule.hpp); ARC's admission has one too.
  [[nodiscard]] const char* rule_name(SlabClassId of) const;

  /// Walks all slots, lists, keys and chunks; anything inconsistent is a broken invariant. For
  /// tests.
  void check_invariants() const;

 private:
  friend class Reservation;
  friend class TierPromises;     // What clients say of blocks (tier_promises.hpp).
  friend class RetirableChunks;  // Chunks that go out of use, and come back (retirable_chunks.hpp).
  /// A SlotClass with the chunks that it is in, and their ages.
  struct SlabClass;
  static constexpr std::uint8_t kNoClass = 0xff;
  static constexpr std::uint8_t kRetired = 0xfe;
  static_assert(kMaxClasses < kRetired);

  [[nodiscard]] SlabClass& at(SlabClassId of) const KVFERRY_REQUIRES(mutex_);
  SlabClassId make_class(std::uint32_t slots_per_chunk) KVFERRY_REQUIRES(mutex_);
  /// writable -> free: no device has seen the slots.
  void give_back(WritableSlots&& slots);
  /// Gets chunks for `count` slots, as far as that is to be.
  void make_room(std::uint32_t of, std::uint32_t count) KVFERRY_REQUIRES(mutex_);
  /// Gets a chunk without an owner for the class: how many free slots it brought. Nothing if there
  /// is none, or none was found that can be had.
  [[nodiscard]] std::optional<std::uint32_t> add_chunk(std::uint32_t of) KVFERRY_REQUIRES(mutex_);
  /// The class whose blocks a chunk that was just taken holds; kNoClass if it is none of this
  /// tier's.
  [[nodiscard]] std::uint8_t class_in(const TakenChunks& taken) const KVFERRY_REQUIRES(mutex_);
  /// Own chunks of no class become the class's. False if they cannot be divided: then the tier has
  /// given them up.
  [[nodiscard]] bool attach(std::uint32_t of, const TakenChunks& chunks) KVFERRY_REQUIRES(mutex_);
  /// Makes a class's chunk one of no class; the tier still owns it. False if a slot of it is named.
  [[nodiscard]] bool detach(ChunkId chunk) KVFERRY_REQUIRES(mutex_);
  /// Detaches the coldest chunk of another class, if that has lain unused for `least_age` at least.
  [[nodiscard]] std::optional<ChunkId> detach_coldest(std::uint32_t for_class,
                                                      std::uint32_t least_age)
      KVFERRY_REQUIRES(mutex_);
  /// Detaches any chunk of another class, looking on where the last look ended.
  [[nodiscard]] std::optional<ChunkId> detach_any(std::uint32_t for_class) KVFERRY_REQUIRES(mutex_);
  /// What RetirableChunks::retire_coldest() looks for.
  [[nodiscard]] std::optional<ChunkRange> coldest_run(std::uint32_t run) const
      KVFERRY_REQUIRES(mutex_);
  /// Any such run, looking on where the last look ended.
  [[nodiscard]] std::optional<ChunkRange> any_run(std::uint32_t run) KVFERRY_REQUIRES(mutex_);
  /// The run that a chunk is in; nothing if not all of its chunks are usable yet.
  [[nodiscard]] std::optional<ChunkRange> run_of(ChunkId chunk, std::uint32_t run) const
      KVFERRY_REQUIRES(mutex_);
  /// For how long chunks were not used, in the mean; nothing if one is retired or has a named slot.
  [[nodiscard]] std::optional<std::uint64_t> age_of(ChunkRange chunks,
                                                    std::uint32_t age_of_free) const
      KVFERRY_REQUIRES(mutex_);
  /// A slot's age, as all classes count it.
  [[nodiscard]] std::uint32_t common_age(const SlabClass& of, std::uint32_t age) const
      KVFERRY_REQUIRES(mutex_);
  /// Gives class 0 the chunks that nobody has, if it is to have all.
  void attach_free() KVFERRY_REQUIRES(mutex_);
  void count_turnover(std::uint32_t of, std::size_t num_slots) KVFERRY_REQUIRES(mutex_);
  /// Chunks that some class has.
  [[nodiscard]] std::uint32_t num_attached() const KVFERRY_REQUIRES(mutex_);
  void mark_time(std::chrono::steady_clock::time_point now) KVFERRY_REQUIRES(mutex_);
  void drop_idle_guests(std::chrono::steady_clock::time_point now) KVFERRY_REQUIRES(mutex_);
  /// Gives up so many of the chunks that it owes, the coldest first.
  void give_up(std::uint32_t most) KVFERRY_REQUIRES(mutex_);
  /// For how long what is evicted next has not been used.
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
  std::uint32_t next_looked_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint32_t next_run_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Reserved since the classes' ages were marked, in chunks.
  double num_turned_over_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Read under the mutex: every call after hold_still() sees what tend() did before it.
  std::atomic<bool> holds_still_{false};
  /// Whether tend() found a step that was not over, and left something to do.
  std::atomic<bool> is_due_{false};
  std::chrono::steady_clock::time_point due_since_ KVFERRY_GUARDED_BY(mutex_);
  /// Chunks that could not be had since the last tend().
  std::uint32_t num_wanted_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Chunks that others are to have, by the last tend().
  std::uint32_t num_owed_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::optional<std::chrono::steady_clock::time_point> marked_at_ KVFERRY_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point guests_dropped_at_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::cpu_tier
