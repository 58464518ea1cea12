// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/slot_word.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// What the file of a shared tier holds. Offsets only: every process maps it where it likes. All of
/// it is zeros at first, and zeros mean: no instance, a chunk without an owner, a free slot, no
/// hint.
///
///     | a page for its header | instances | chunks | hints | slot words | slot keys | arena of
///     rank 0
///     |..
///
/// The metadata are the schedulers' alone; a rank maps its arena and knows nothing of the rest.
/// Everything that more than one process writes is an atomic word that says all there is to say.
namespace kvferry::cpu_tier {

/// Ranks of an engine on one node.
inline constexpr std::uint32_t kMaxTierRanks = 63;
/// Every part begins at one: a page of most machines, and more than a cache line.
inline constexpr std::uint64_t kTierPageBytes = 4096;

/// How the memory is divided; all instances of a tier agree on it.
struct TierShape {
  std::uint32_t num_chunks = 0;
  /// Of one rank. Each chunk has slots of one size, as its owner says.
  std::uint64_t chunk_bytes = 0;
  /// Most slots that a chunk may be divided into.
  std::uint32_t max_chunk_slots = 0;
  std::uint32_t num_ranks = 0;
  bool operator==(const TierShape&) const = default;
};

/// An engine instance. It is claimed by one compare-and-swap of `lock` from 0, by a process that
/// holds the member lock of that base; the holder of the death lock of that base makes it 0 again.
struct alignas(64) InstanceRecord {
  std::atomic<std::uint64_t> lock;   ///< LockBase; 0: free.
  std::atomic<std::uint64_t> epoch;  ///< Goes up whenever the record becomes free.
  std::atomic<std::uint64_t> name_space;
  std::atomic<std::uint32_t> weight;
  std::atomic<std::uint32_t> most_chunks;
  std::atomic<std::uint32_t> num_chunks;
  /// The rest is what it says of itself for chunk_fairness.hpp.
  std::atomic<std::uint32_t> num_wanted_chunks;
  /// For how long what it would evict next has not been used.
  std::atomic<std::uint32_t> coldest_seconds;
  /// Goes up whenever it says so, and never back. No time: processes may have clocks of their own
  /// (time name spaces), so that each notes by its own when it saw another's word change.
  std::atomic<std::uint32_t> num_told;
  /// Text, for people.
  std::array<std::atomic<std::uint64_t>, 18> name;
};
static_assert(sizeof(InstanceRecord) == 192);

/// What the key of a slot is stamped with: the generation in its word, and how its chunk is
/// divided.
[[nodiscard]] constexpr std::uint32_t slot_stamp(SlotWord word, std::uint32_t num_slots,
                                                 std::uint32_t slab_class) {
  return (word.generation() ^ num_slots ^ slab_class << 16U) & 0xffffffU;
}

void store_name(InstanceRecord& record, std::string_view name);
[[nodiscard]] std::string load_name(const InstanceRecord& record);

/// The owner of a chunk: none (0), or {instance, epoch of its record}.
struct ChunkOwner {
  std::uint64_t bits = 0;

  [[nodiscard]] static constexpr ChunkOwner of(InstanceId instance, std::uint64_t epoch) {
    return {epoch << 8U | (instance.value() + 1U)};
  }
  bool operator==(const ChunkOwner&) const = default;
};
static_assert(kMaxInstances < 0xff);

/// A chunk. `owner` changes by compare-and-swap; the rest is the owner's to write, and stays when
/// the chunk loses its owner, so that what is in it can be served and taken over.
struct alignas(64) ChunkRecord {
  std::atomic<std::uint64_t> owner;  ///< ChunkOwner.
  /// Slots in use, from the first; 0: it was never divided.
  std::atomic<std::uint32_t> num_slots;
  /// Of the classes that have as many.
  std::atomic<std::uint32_t> slab_class;
  std::atomic<std::uint64_t> name_space;
  /// Goes up whenever a sweeper is about to put slots of it in quarantine, and never back: its
  /// owner counts the grace by its own clock from when it first saw this number.
  std::atomic<std::uint64_t> num_quarantines;
};

/// What a slot holds: written while it is filling, and read under a lease, or without one for a
/// first look. Half of one fails its check, as does what another program has written. The check
/// says of which slot the key is, too, of which generation of it, and how its chunk is divided: a
/// key that lies next to another slot's word, that is older than its word, or whose bytes would be
/// elsewhere now, is none.
struct SlotKey {
  static constexpr std::size_t kKeyWords = sizeof(BlockKey) / sizeof(std::uint64_t);
  std::array<std::atomic<std::uint64_t>, kKeyWords> key;
  std::atomic<std::uint64_t> name_space;
  std::atomic<std::uint64_t> check;  ///< Of all else in 40 bits, below the stamp.

  struct Content {
    BlockKey key;
    std::uint64_t name_space = 0;
    std::uint32_t stamp = 0;  ///< 24 bits: slot_stamp() when this was written.
  };

  /// `slot_number`: of the slot that this is the key of, among all of the tier.
  void store(std::uint64_t slot_number, const Content& content);
  /// Nothing if it is not whole, or of another slot.
  [[nodiscard]] std::optional<Content> load(std::uint64_t slot_number) const;
};

/// A slot. It is one cache line: an instance that leases another's slot reads its key too, and an
/// instance that fills a slot writes both.
struct alignas(64) SlotLine {
  std::atomic<std::uint64_t> word;  ///< SlotWord.
  SlotKey key;
};
static_assert(sizeof(SlotLine) == 64);

/// Where the parts begin, in bytes from the file's begin.
struct TierPlaces {
  std::uint64_t instances = 0;
  std::uint64_t chunks = 0;
  std::uint64_t hints = 0;
  std::uint64_t slots = 0;
  std::uint64_t arenas = 0;  ///< End of the metadata, too.
  std::uint64_t end = 0;
  std::uint64_t num_hints = 0;
};

/// Of a file whose pages have `page_bytes`. Throws ConfigError for a shape that cannot be: none of
/// something, too many ranks, or 2^32 slots and more.
[[nodiscard]] TierPlaces tier_places(const TierShape& shape, std::uint64_t page_bytes);

}  // namespace kvferry::cpu_tier
