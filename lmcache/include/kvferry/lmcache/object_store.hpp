// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/base/result.hpp"
#include "kvferry/cpu_tier/peers/tier_keeper.hpp"
#include "kvferry/cpu_tier/peers/tier_peers.hpp"
#include "kvferry/cpu_tier/policy/tier_options.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"
#include "kvferry/lmcache/chunk_memory.hpp"
#include "kvferry/lmcache/object_key.hpp"
#include "kvferry/lmcache/value_set.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::lmcache {

/// Nothing was reserved; what was evicted on the way stays evicted.
struct NotStored {
  std::string why;  ///< One line: figures and remedy.
};

/// What a key is found by; another one only in tests.
using DigestFunction = cpu_tier::BlockKey (*)(std::string_view key);

/// One consistent view of what is held. Counters are since construction.
struct StoreSnapshot {
  std::uint64_t num_objects = 0;  ///< Readable ones in chunks of this store.
  /// The same in chunks of others, or without an owner: they are served, too. O(their slots).
  std::uint64_t num_objects_of_others = 0;
  std::uint64_t slot_bytes = 0;   ///< Of this store's slots that are not free.
  std::uint64_t chunk_bytes = 0;  ///< Of this store's chunks; of memory of its own, all.
  std::uint64_t ready_bytes = 0;  ///< Of chunks that are ready, whichever store has them.
  std::uint64_t num_stored_total = 0;
  std::uint64_t num_evicted_total = 0;
  std::uint64_t num_refused_total = 0;  ///< Reservations that found no room.
  std::uint32_t num_size_classes = 0;
};

/// Values of any size by keys that are any text, in the memory of one Tier: a slab class for
/// each size of slots. It hands out places and copies nothing.
///
/// Exact: a value is found by the whole key and its size, never by a hash alone. Bounded: a value
/// has its place before it is copied, or is refused. A key is readable only after commit(), and
/// its bytes stay as they are while a lease is on them. A value is never overwritten.
///
/// Stores of several processes may share their memory. What others hold, or left, is found and
/// leased as what this one holds; only the store that has a value can forget it.
///
/// Thread-safe; each call is one atomic step, O(keys times classes). Throws only std::bad_alloc,
/// and what was reserved has been given back then.
class ObjectStore {
 public:
  /// `eviction`: every value that is offered is stored; which ones leave is the policy's.
  ObjectStore(std::unique_ptr<ChunkMemory> memory, cpu_tier::Eviction eviction,
              DigestFunction digest = &digest_of);
  /// Every set was given back.
  ~ObjectStore();
  ObjectStore(const ObjectStore&) = delete;
  ObjectStore& operator=(const ObjectStore&) = delete;

  // ---- store ----

  /// Places for all values that the store does not hold yet, evicting others; or none, and
  /// NotStored. Of a key that is given twice the first counts. A key that this store holds with
  /// another size is forgotten first. `value_bytes[i]` is for `keys[i]`.
  [[nodiscard]] Result<WritableValues, NotStored> reserve(
      std::span<const std::string_view> keys, std::span<const std::uint64_t> value_bytes);
  /// The values have been copied, and copies that passed the caches by are finished.
  void commit(WritableValues&& values) noexcept;
  /// No thread will write into them any more.
  void abort(WritableValues&& values) noexcept;

  // ---- load ----

  /// A lease on each value that is held under that key with that size.
  [[nodiscard]] ReadableValues lease(std::span<const std::string_view> keys,
                                     std::span<const std::uint64_t> value_bytes);
  void release(ReadableValues&& values) noexcept;

  /// Whether each key is readable, whatever its size; touches those that are.
  [[nodiscard]] std::vector<bool> lookup(std::span<const std::string_view> keys);
  /// Forgets the keys; whether each was readable. Leases on them go on. What another holds stays as
  /// it is, and is said to have been there: deleting it for room gains none.
  std::vector<bool> forget(std::span<const std::string_view> keys);

  [[nodiscard]] StoreSnapshot snapshot() const;
  [[nodiscard]] const ChunkMemory& memory() const { return *memory_; }
  /// Walks all; anything inconsistent is a broken invariant. No thread writes meanwhile. For tests.
  void check_invariants() const;

 private:
  using Digest = cpu_tier::BlockKey;
  struct SizeClass {
    SlabClassId id;
    SlotSize slots;
  };
  /// What is looked for in one class after the other (object_search.hpp).
  struct Search;
  struct Batch;
  class Step;

  /// The class of the geometry's size of that number; null if there is none yet.
  [[nodiscard]] const SizeClass* find_class(std::uint32_t size) const KVFERRY_REQUIRES(mutex_);
  const SizeClass& make_class(std::uint32_t size) KVFERRY_REQUIRES(mutex_);
  /// Makes the classes of what others hold, or left. Returns whether there were any.
  bool learn_classes() KVFERRY_REQUIRES(mutex_);
  void take_ready_chunks() KVFERRY_REQUIRES(mutex_);

  /// What the class holds of what is looked for; slots of others are leased until no call has asked
  /// for them for a while.
  void find(const SizeClass& in, Search& search) KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] SlotRecord& record(const SizeClass& of, SlotId slot) const;
  [[nodiscard]] std::byte* place(const SizeClass& of, SlotId slot) const;
  /// Whether a slot that find() found has that key.
  [[nodiscard]] bool has_key(const SizeClass& of, SlotId slot, std::string_view key) const;
  /// The same with that size.
  [[nodiscard]] bool has_value(const SizeClass& of, SlotId slot, std::string_view key,
                               std::uint64_t value_bytes) const;
  /// Whether the slot is this store's, to forget what is in it.
  [[nodiscard]] bool is_own(const SizeClass& of, SlotId slot) const;
  void prefetch(const SizeClass& of, std::span<const SlotId> slots) const;
  void write_record(const SizeClass& of, SlotId slot, std::string_view key,
                    std::uint64_t value_bytes);

  /// Takes what needs no place out of the batch, and forgets what it replaces.
  void settle_present(Batch& batch) KVFERRY_REQUIRES(mutex_);
  /// Places for those of the batch that are of one class. Returns whether it had them.
  [[nodiscard]] bool reserve_class(const Batch& batch, std::uint32_t size, WritableValues& values)
      KVFERRY_REQUIRES(mutex_);
  /// The same for a key, `which[present]`, that came here while there was room made: with a chunk
  /// that another store left.
  void settle_adopted(const Batch& batch, const SizeClass& of, std::vector<std::size_t>& which,
                      std::size_t present);
  void give_back(WritableValues&& values);
  /// Marks as found those of the search, in that class, that are readable.
  void look_up_in(const SizeClass& in, Search& search, std::vector<bool>& found)
      KVFERRY_REQUIRES(mutex_);
  void forget_found(const SizeClass& in, std::span<const Digest> digests);

  const std::unique_ptr<ChunkMemory> memory_;
  const StoreGeometry& geometry_;
  const DigestFunction digest_;
  /// Under the mutex but for the sets that are given back.
  cpu_tier::Tier tier_;
  mutable Mutex mutex_;
  std::vector<SizeClass> classes_ KVFERRY_GUARDED_BY(mutex_);  ///< By id.
  /// By number of size.
  std::vector<std::optional<SlabClassId>> class_of_size_ KVFERRY_GUARDED_BY(mutex_);
  std::uint32_t num_ready_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_refused_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Of shared memory. Last: it ends before what it keeps.
  std::optional<cpu_tier::TierKeeper> keeper_;
};

}  // namespace kvferry::lmcache
