// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/base/mutex.hpp"
#include "kvferry/base/result.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/cpu_tier/policy/tier_options.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"
#include "kvferry/cpu_tier/slots/tier_snapshot.hpp"
#include "kvferry/cpu_tier/slots/turnover_clock.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// The chunks of one class.
struct SlabClassSnapshot {
  std::uint32_t slots_per_chunk = 0;
  std::uint32_t num_chunks = 0;
  std::uint64_t num_gained_total = 0;  ///< Chunks that were another class's.
  TierSnapshot tier;
  bool operator==(const SlabClassSnapshot&) const = default;
};

/// One consistent view of who has which chunk; each class's own counts are of its own moment.
struct SlabSnapshot {
  std::uint32_t num_chunks = 0;
  std::uint32_t num_free_chunks = 0;  ///< Of no class.
  std::vector<SlabClassSnapshot> classes;
  bool operator==(const SlabSnapshot&) const = default;
};

/// One memory shared by slots of several sizes, without a fixed split: it is in chunks, and each
/// chunk belongs to one class or to none. Each class has a tier of its own, whose slot `s` lies in
/// chunk s / slots_per_chunk, so that an Arena whose "slots" are the chunks has the bytes.
///
/// A class that has no free slots for what it wants to store gets a chunk that nobody has; else, if
/// its blocks are evicted much younger than another class's lie unused, the coldest chunk of that
/// one, a chunk for each chunk that it evicts at most; else, if it could not have its slots even by
/// evicting all of its own, as many cold chunks as that takes. A chunk with a named slot (leased,
/// reserved, in a device's hands) stays where it is.
///
/// What is wasted, then: behind the slots of a chunk less than one slot; and while a class cannot
/// have its slots, the free and evictable slots of those chunks of others that have a named slot.
/// (A look for a chunk is bounded: kMostLooked chunks at a time; the next attempt goes on there.)
///
/// Chunks of a shared tier (`directory`) are those that this instance has taken: it takes what
/// nobody has when it needs some, with what is in it if that is of its own name space, and gives up
/// its coldest ones when others are to have them (tend()).
///
/// Thread-safe as CpuTier is; reserve() of all classes is one at a time. Nothing throws but
/// construction, add_class() and reserve() (std::bad_alloc; no slot was taken then).
class SlabTier {
 public:
  static constexpr std::uint32_t kMaxClasses = 128;

  /// A tier that can grow to `max_chunks`; none is usable yet. `options` are those of each class.
  /// `directory`, if there is one, has as many chunks and outlives this.
  explicit SlabTier(std::uint32_t max_chunks, const TierOptions& options = {},
                    TierDirectory* directory = nullptr);
  SlabTier(const SlabTier&) = delete;
  SlabTier& operator=(const SlabTier&) = delete;

  /// Its tier could have all of the memory. Throws ConfigError for 0, above kMaxClasses classes and
  /// above BlockIndex::kMaxSlots slots.
  SlabClassId add_class(std::uint32_t slots_per_chunk);
  /// Makes chunks [0, num_chunks) usable; never fewer than before, at most max_chunks.
  void grow_to(std::uint32_t num_chunks);

  /// For lookups, leases and what becomes of reserved slots. Its own reserve() moves no chunk, its
  /// offer() knows of none.
  [[nodiscard]] CpuTier& tier(SlabClassId of) { return slab_class(of).tier; }
  [[nodiscard]] std::uint32_t num_classes() const {
    return num_classes_.load(std::memory_order_acquire);
  }

  /// As CpuTier::offer(); what nobody has is as good as free slots of this class.
  void offer(SlabClassId of, std::span<const BlockKey> keys, std::span<OfferAnswer> answers);
  /// As CpuTier::reserve(), but chunks may come from other classes, whose blocks in them are
  /// evicted; with NotReserved they may have come, too, and stay: the next attempt has them.
  [[nodiscard]] Result<Reservation, NotReserved> reserve(SlabClassId of,
                                                         std::span<const BlockKey> keys);

  // ---- a shared tier ----

  /// From now on to end_step() nothing is evicted but by reserve(): what lookups find can be
  /// leased. end_step() does what tend() had to leave, a few chunks at a time: an engine that is
  /// always found in a step starves nobody.
  void hold_still();
  void end_step();
  /// To be called a few times per second, from any thread but one at a time: tells the others how
  /// this instance stands, frees what was set aside, and, unless it is to hold still, lets go of
  /// what was found for lookups and not used, and gives up chunks that others are to have.
  void tend(std::chrono::steady_clock::time_point now);

  [[nodiscard]] SlabSnapshot snapshot() const;
  /// Walks all; anything inconsistent is a broken invariant. For tests.
  void check_invariants() const;

 private:
  struct SlabClass {
    SlabClass(std::uint32_t max_chunks, const ChunkShape& of, const TierOptions& options,
              TierDirectory* directory)
        : shape(of),
          slots_per_chunk(of.num_slots),
          tier(max_chunks * of.num_slots, options,
               directory == nullptr ? std::nullopt : std::optional(SharedSlots(*directory, of))),
          ages(tier.clock()),
          marks(tier.clock()) {}

    const ChunkShape shape;
    const std::uint32_t slots_per_chunk;
    CpuTier tier;
    // Under the mutex of the whole:
    TurnoverClock ages;
    /// The same by the clock on the wall (tend()).
    TurnoverClock marks;
    std::uint32_t num_chunks = 0;
    std::uint64_t num_gained_total = 0;
    std::uint64_t num_evicted_at_gain = 0;
  };
  static constexpr std::uint8_t kNobody = 0xff;
  static_assert(kMaxClasses < kNobody);

  [[nodiscard]] SlabClass& slab_class(SlabClassId of) const;
  /// Gets a chunk of nobody for the class: how many free slots it brought. Nothing if there is
  /// none, or none was found that can be had.
  [[nodiscard]] std::optional<std::uint32_t> add_chunk(std::uint32_t of) KVFERRY_REQUIRES(mutex_);
  /// The same, of a shared tier.
  [[nodiscard]] std::optional<std::uint32_t> add_shared_chunk(std::uint32_t of)
      KVFERRY_REQUIRES(mutex_);
  /// The class whose blocks a chunk of the shared tier that was just taken holds; kNobody if it is
  /// none of this instance's.
  [[nodiscard]] std::uint8_t class_in(std::uint32_t chunk) const KVFERRY_REQUIRES(mutex_);
  void mark_time(std::chrono::steady_clock::time_point now) KVFERRY_REQUIRES(mutex_);
  void drop_idle_guests(std::chrono::steady_clock::time_point now) KVFERRY_REQUIRES(mutex_);
  /// Gives up so many of the chunks that it owes, the coldest first.
  void give_up(std::uint32_t most) KVFERRY_REQUIRES(mutex_);
  /// For how long what is evicted next has not been used.
  [[nodiscard]] std::chrono::seconds coldest_age() const KVFERRY_REQUIRES(mutex_);
  /// Chunks that some class has.
  [[nodiscard]] std::uint32_t num_owned() const KVFERRY_REQUIRES(mutex_);
  /// Gets chunks for `count` slots, as far as that is to be.
  void make_room(std::uint32_t of, std::uint32_t count) KVFERRY_REQUIRES(mutex_);
  void give(std::uint32_t of, std::uint32_t chunk) KVFERRY_REQUIRES(mutex_);
  /// Makes the chunk nobody's. False if a slot of it is named.
  [[nodiscard]] bool take(std::uint32_t chunk) KVFERRY_REQUIRES(mutex_);
  /// Takes the coldest chunk of another class, if it has lain unused for `least_age` at least.
  [[nodiscard]] std::optional<std::uint32_t> take_coldest(std::uint32_t for_class,
                                                          std::uint32_t least_age)
      KVFERRY_REQUIRES(mutex_);
  /// Takes any chunk of another class, looking on where the last look ended.
  [[nodiscard]] std::optional<std::uint32_t> take_any(std::uint32_t for_class)
      KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] static SlotRange slots_of(const SlabClass& of, std::uint32_t chunk) {
    return {chunk * of.slots_per_chunk, (chunk + 1) * of.slots_per_chunk};
  }
  void count_turnover(std::uint32_t of, std::size_t num_slots) KVFERRY_REQUIRES(mutex_);

  const std::uint32_t max_chunks_;
  const TierOptions options_;
  /// Before the classes' own. What a class is made of does not move.
  mutable Mutex mutex_;
  std::array<std::unique_ptr<SlabClass>, kMaxClasses> classes_;
  std::atomic<std::uint32_t> num_classes_{0};
  std::vector<std::uint8_t> owners_ KVFERRY_GUARDED_BY(mutex_);  ///< By chunk.
  std::vector<std::uint32_t> free_chunks_ KVFERRY_GUARDED_BY(mutex_);
  std::uint32_t next_looked_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Reserved since the classes' ages were marked, in chunks.
  double num_turned_over_ KVFERRY_GUARDED_BY(mutex_) = 0;
  TierDirectory* const directory_;
  bool holds_still_ KVFERRY_GUARDED_BY(mutex_) = false;
  /// Chunks that could not be had since the last tend().
  std::uint32_t num_wanted_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Of nobody's, at the last look.
  std::uint32_t num_unowned_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Chunks that others are to have, by the last tend().
  std::uint32_t num_owed_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// When tend() found a step that was not over, if that has left something to do.
  std::optional<std::chrono::steady_clock::time_point> due_since_ KVFERRY_GUARDED_BY(mutex_);
  std::optional<std::chrono::steady_clock::time_point> marked_at_ KVFERRY_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point guests_dropped_at_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::cpu_tier
