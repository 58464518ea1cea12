// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/base/result.hpp"
#include "kvferry/cpu_tier/slab_tier.hpp"
#include "kvferry/cpu_tier/tier_options.hpp"
#include "kvferry/lmcache/chunk_memory.hpp"
#include "kvferry/lmcache/object_key.hpp"
#include "kvferry/lmcache/value_set.hpp"

#include <cstdint>
#include <map>
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
  std::uint64_t num_objects = 0;  ///< Readable ones.
  std::uint64_t slot_bytes = 0;   ///< Of slots that are not free.
  std::uint64_t ready_bytes = 0;  ///< Of chunks that are ready.
  std::uint64_t num_stored_total = 0;
  std::uint64_t num_evicted_total = 0;
  std::uint64_t num_refused_total = 0;  ///< Reservations that found no room.
  std::uint32_t num_size_classes = 0;
};

/// Values of any size by keys that are any text, in the memory of one SlabTier: a slab class for
/// each size of slots. It hands out places and copies nothing.
///
/// Exact: a value is found by the whole key and its size, never by a hash alone. Bounded: a value
/// has its place before it is copied, or is refused. A key is readable only after commit(), and
/// its bytes stay as they are while anybody has a lease on them. A value is never overwritten.
///
/// Thread-safe; each call is one atomic step, O(keys times classes). Throws only std::bad_alloc,
/// and what was reserved has been given back then.
class ObjectStore {
 public:
  /// `eviction`: every value that is offered is stored; which ones leave is the policy's. What the
  /// memory holds of an earlier process is there again, but for what it had not committed.
  ObjectStore(std::unique_ptr<ChunkMemory> memory, cpu_tier::Eviction eviction,
              DigestFunction digest = &digest_of);
  /// Every set was given back.
  ~ObjectStore();
  ObjectStore(const ObjectStore&) = delete;
  ObjectStore& operator=(const ObjectStore&) = delete;

  // ---- store ----

  /// Places for all values that the store does not hold yet, evicting others; or none, and
  /// NotStored. Of a key that is given twice the first counts. A key that is held with another size
  /// is forgotten first. `value_bytes[i]` is for `keys[i]`.
  [[nodiscard]] Result<WritableValues, NotStored> reserve(
      std::span<const std::string_view> keys, std::span<const std::uint64_t> value_bytes);
  /// The values have been copied, and copies that passed the caches by are finished.
  void commit(WritableValues&& values) noexcept;
  /// Nobody will write into them any more.
  void abort(WritableValues&& values) noexcept;

  // ---- load ----

  /// A lease on each value that is held under that key with that size.
  [[nodiscard]] ReadableValues lease(std::span<const std::string_view> keys,
                                     std::span<const std::uint64_t> value_bytes);
  void release(ReadableValues&& values) noexcept;

  /// Whether each key is readable, whatever its size; touches those that are.
  [[nodiscard]] std::vector<bool> lookup(std::span<const std::string_view> keys);
  /// Forgets the keys; whether each was readable. Leases on them go on.
  std::vector<bool> forget(std::span<const std::string_view> keys);

  [[nodiscard]] StoreSnapshot snapshot() const;
  [[nodiscard]] const ChunkMemory& memory() const { return *memory_; }
  /// Walks all; anything inconsistent is a broken invariant. Nobody writes meanwhile. For tests.
  void check_invariants() const;

 private:
  using Digest = cpu_tier::BlockKey;
  struct SizeClass {
    SlabClassId id;
    std::uint64_t slot_bytes = 0;
    std::uint32_t slots_per_chunk = 0;
    std::uint32_t num_slots_seen = 0;  ///< When its chunks were last looked at.
  };
  /// What is looked for in one class after the other (object_search.hpp).
  struct Search;
  struct Batch;

  /// The class of slots of that size; null if there is none.
  [[nodiscard]] const SizeClass* find_class(std::uint64_t slot_bytes) const
      KVFERRY_REQUIRES(mutex_);
  const SizeClass& make_class(std::uint64_t slot_bytes) KVFERRY_REQUIRES(mutex_);
  void find(const SizeClass& in, Search& search) KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] SlotRecord& record(const SizeClass& of, SlotId slot) const;
  [[nodiscard]] std::byte* place(const SizeClass& of, SlotId slot) const;
  /// Whether a slot that is readable has that key.
  [[nodiscard]] bool has_key(const SizeClass& of, SlotId slot, std::string_view key) const;
  void prefetch(const SizeClass& of, std::span<const SlotId> slots) const;
  void begin_record(const SizeClass& of, SlotId slot, std::string_view key,
                    std::uint64_t value_bytes) KVFERRY_REQUIRES(mutex_);
  void free_records(const SizeClass& of, std::span<const SlotId> slots);

  /// Takes what needs no place out of the batch, and forgets what it replaces.
  void settle_present(Batch& batch) KVFERRY_REQUIRES(mutex_);
  /// Places for those of the batch that are of one class. Returns whether it had them.
  [[nodiscard]] bool reserve_class(const Batch& batch, const SizeClass& of, WritableValues& values)
      KVFERRY_REQUIRES(mutex_);
  void give_back(WritableValues&& values) KVFERRY_REQUIRES(mutex_);
  void forget_found(const SizeClass& in, std::span<const Digest> digests) KVFERRY_REQUIRES(mutex_);

  void take_ready_chunks() KVFERRY_REQUIRES(mutex_);
  /// After reserving for a class: chunks may have come to it, and gone from others.
  void follow_chunks(SlabClassId reserved_for) KVFERRY_REQUIRES(mutex_);
  void clear_chunk(std::uint32_t chunk) KVFERRY_REQUIRES(mutex_);
  void free_all_records(std::uint32_t place, std::uint64_t slot_bytes) KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] std::uint32_t num_slots_in_chunk(const SizeClass& of, std::uint32_t chunk)
      KVFERRY_REQUIRES(mutex_);

  /// What a chunk of kept memory holds, as far as it can be trusted.
  struct KeptChunk;
  /// Takes over what an earlier process left in the memory.
  void recover() KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] std::vector<KeptChunk> read_kept() KVFERRY_REQUIRES(mutex_);
  void take_over(const KeptChunk& kept, std::uint32_t chunk,
                 std::vector<cpu_tier::Reservation>& fillers) KVFERRY_REQUIRES(mutex_);
  /// The key of a record that is whole and as it was written; nothing otherwise.
  [[nodiscard]] std::optional<std::string_view> kept_key(std::uint32_t place, std::uint32_t index,
                                                         std::uint64_t slot_bytes) const;

  const std::unique_ptr<ChunkMemory> memory_;
  const StoreGeometry& geometry_;
  const DigestFunction digest_;
  /// Where the tier's chunks are in the memory.
  std::vector<std::uint32_t> chunk_places_;
  /// Under the mutex but for the sets that are given back.
  cpu_tier::SlabTier slabs_;
  mutable Mutex mutex_;
  std::vector<SizeClass> classes_ KVFERRY_GUARDED_BY(mutex_);  ///< By id.
  std::map<std::uint64_t, std::uint32_t> class_of_bytes_ KVFERRY_GUARDED_BY(mutex_);
  std::uint32_t num_ready_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_number_ KVFERRY_GUARDED_BY(mutex_) = 1;
  std::uint64_t num_refused_ KVFERRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvferry::lmcache
