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

/// Nothing was reserved. Values that were evicted in the attempt stay evicted.
struct NotStored {
  std::string why;  ///< One line: figures and remedy.
};

/// The digest function by which keys are found. Only tests use a different one.
using DigestFunction = cpu_tier::BlockKey (*)(std::string_view key);

/// One consistent view of the store. Counters are since construction.
struct StoreSnapshot {
  std::uint64_t num_objects = 0;  ///< Readable objects in chunks of this store.
  /// The same in chunks of other stores, or without an owner. They are served too. O(their slots).
  std::uint64_t num_objects_of_others = 0;
  std::uint64_t slot_bytes = 0;  ///< Bytes of this store's slots that are not free.
  std::uint64_t chunk_bytes =
      0;  ///< Bytes of this store's chunks; all chunks, if the memory is not shared.
  std::uint64_t ready_bytes = 0;  ///< Bytes of ready chunks, whichever store has them.
  std::uint64_t num_stored_total = 0;
  std::uint64_t num_evicted_total = 0;
  std::uint64_t num_refused_total = 0;  ///< Reservations for which there was no room.
  std::uint64_t num_damaged_total = 0;  ///< Values that withdraw_damaged() has found.
  std::uint32_t num_size_classes = 0;
};

/// Stores values of any size under text keys, in the memory of one Tier, with one slab class for
/// each slot size. It hands out places and copies nothing.
///
/// Exact: a value is found by the whole key and its size, never by a hash alone. Bounded: a value
/// gets its place before it is copied, or is refused. A key is readable only after commit(), and
/// its bytes do not change while they are leased. A value is never overwritten.
///
/// Stores of several processes can share their memory. Values that other stores hold, or left, are
/// found and leased like this store's own. Only the store that has a value can forget it.
///
/// Thread-safe; each call is one atomic step, O(keys times classes). Throws only std::bad_alloc;
/// then the reservation has been released.
class ObjectStore {
 public:
  /// `eviction`: the policy chooses which values leave. Every value that is offered is stored.
  ObjectStore(std::unique_ptr<ChunkMemory> memory, cpu_tier::Eviction eviction,
              DigestFunction digest = &digest_of);
  /// Every set must have been given back.
  ~ObjectStore();
  ObjectStore(const ObjectStore&) = delete;
  ObjectStore& operator=(const ObjectStore&) = delete;

  // ---- store ----

  /// Reserves places for all values that the store does not hold yet, and evicts others if needed;
  /// or reserves none and returns NotStored. If a key is given twice, the first counts. If this
  /// store holds a key with another size, that value is forgotten first. `value_bytes[i]` is for
  /// `keys[i]`.
  [[nodiscard]] Result<WritableValues, NotStored> reserve(
      std::span<const std::string_view> keys, std::span<const std::uint64_t> value_bytes);
  /// Makes the values readable. They have been copied, and finish_streaming() was called for copies
  /// that bypass the caches. `sums[i]` is the gpu::tag_sum() of what was copied to `places()[i]`.
  /// Without sums the values have no tags, and are never found damaged.
  void commit(WritableValues&& values, std::span<const std::uint64_t> sums = {}) noexcept;
  /// Releases places into which no thread will write any more.
  void abort(WritableValues&& values) noexcept;

  // ---- load ----

  /// Leases each value that is held under its key with its size.
  [[nodiscard]] ReadableValues lease(std::span<const std::string_view> keys,
                                     std::span<const std::uint64_t> value_bytes);
  void release(ReadableValues&& values) noexcept;
  /// Compares the tags. `sums[i]` is the gpu::tag_sum() of what was copied from `places()[i]`.
  /// Returns the numbers of the values that are not what was stored, ascending. No store that
  /// shares the memory finds them any more, and their slots are never used again.
  [[nodiscard]] std::vector<std::size_t> withdraw_damaged(const ReadableValues& values,
                                                          std::span<const std::uint64_t> sums);
  /// A line about each damaged value since the last call; about the first kMostWarnings of them.
  [[nodiscard]] std::vector<std::string> take_warnings();
  static constexpr std::size_t kMostWarnings = 16;

  /// Whether each key is readable, with any size. Touches those that are.
  [[nodiscard]] std::vector<bool> lookup(std::span<const std::string_view> keys);
  /// Forgets the keys, and returns whether each was readable. Leases on them continue. A value that
  /// another store holds stays, and the result says that it was there: deleting it would free no
  /// room here.
  std::vector<bool> forget(std::span<const std::string_view> keys);

  [[nodiscard]] StoreSnapshot snapshot() const;
  [[nodiscard]] const ChunkMemory& memory() const { return *memory_; }
  /// Checks everything; any inconsistency is a broken invariant. No thread may write meanwhile. For
  /// tests.
  void check_invariants() const;

 private:
  using Digest = cpu_tier::BlockKey;
  struct SizeClass {
    SlabClassId id;
    SlotSize slots;
  };
  /// A search through one class after the other (object_search.hpp).
  struct Search;
  struct Batch;
  class Step;

  /// The class for the geometry's slot size with that number; null if there is none yet.
  [[nodiscard]] const SizeClass* find_class(std::uint32_t size) const KVFERRY_REQUIRES(mutex_);
  const SizeClass& make_class(std::uint32_t size) KVFERRY_REQUIRES(mutex_);
  /// Makes the classes for the values that other stores hold, or left. Returns whether there were
  /// any.
  bool learn_classes() KVFERRY_REQUIRES(mutex_);
  void take_ready_chunks() KVFERRY_REQUIRES(mutex_);

  /// Finds the searched values in the class. Slots of other stores are leased until no call has
  /// asked for them for a while.
  void find(const SizeClass& in, Search& search) KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] SlotRecord& record(const SizeClass& of, SlotId slot) const;
  [[nodiscard]] std::byte* place(const SizeClass& of, SlotId slot) const;
  /// Whether a slot that find() found has that key.
  [[nodiscard]] bool has_key(const SizeClass& of, SlotId slot, std::string_view key) const;
  /// The same, with that size.
  [[nodiscard]] bool has_value(const SizeClass& of, SlotId slot, std::string_view key,
                               std::uint64_t value_bytes) const;
  /// Whether the slot belongs to this store, so that it can forget the value.
  [[nodiscard]] bool is_own(const SizeClass& of, SlotId slot) const;
  void prefetch(const SizeClass& of, std::span<const SlotId> slots) const;
  /// The record gets its tag in commit().
  void write_record(const SizeClass& of, SlotId slot, std::string_view key,
                    std::uint64_t value_bytes);
  /// Enters the slot of the key with that number, which is one of the last part's.
  template <class Values>
  void enter(Values& values, std::size_t number, const SizeClass& of, SlotId slot,
             std::uint64_t identity) const;

  /// Removes values that need no place from the batch, and forgets the values that are replaced.
  void settle_present(Batch& batch) KVFERRY_REQUIRES(mutex_);
  /// Reserves places for the values of the batch that are of one class. Returns whether it got
  /// them.
  [[nodiscard]] bool reserve_class(const Batch& batch, std::uint32_t size, WritableValues& values)
      KVFERRY_REQUIRES(mutex_);
  /// Leases the values of this class that `search` finds. If it throws, `values` has what was
  /// leased before.
  void lease_class(const SizeClass& one, Search& search, std::span<const std::string_view> keys,
                   std::span<const std::uint64_t> value_bytes, ReadableValues& values)
      KVFERRY_REQUIRES(mutex_);
  /// As reserve_class() for a key, `which[present]`, that appeared while room was made, in a chunk
  /// that another store left.
  void settle_adopted(const Batch& batch, const SizeClass& of, std::vector<std::size_t>& which,
                      std::size_t present);
  void give_back(WritableValues&& values);
  /// Marks the readable values of that class as found in the search.
  void look_up_in(const SizeClass& in, Search& search, std::vector<bool>& found)
      KVFERRY_REQUIRES(mutex_);
  void forget_found(const SizeClass& in, std::span<const Digest> digests);
  void withdraw(const ReadableValues& values, std::size_t number, std::uint64_t sum)
      KVFERRY_REQUIRES(mutex_);

  const std::unique_ptr<ChunkMemory> memory_;
  const StoreGeometry& geometry_;
  const DigestFunction digest_;
  /// Used under the mutex, except for sets that are given back.
  cpu_tier::Tier tier_;
  mutable Mutex mutex_;
  std::vector<SizeClass> classes_ KVFERRY_GUARDED_BY(mutex_);  ///< By id.
  /// By the number of the slot size.
  std::vector<std::optional<SlabClassId>> class_of_size_ KVFERRY_GUARDED_BY(mutex_);
  std::uint32_t num_ready_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_refused_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_damaged_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> warnings_ KVFERRY_GUARDED_BY(mutex_);
  /// For shared memory. Last member: it ends before the members that it uses.
  std::optional<cpu_tier::TierKeeper> keeper_;
};

}  // namespace kvferry::lmcache
