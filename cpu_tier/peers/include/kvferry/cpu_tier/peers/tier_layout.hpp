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

/// The layout of a shared tier's file. It has only offsets, because every process maps it at a
/// different address. The file is all zeros at first, and zeros mean: no instance, a chunk without
/// an owner, a free slot, no hint.
///
///     | a page for its header | instances | chunks | hints | slot words | slot keys |
///     | tags of rank 0 | tags of rank 1 | .. | arena of rank 0 | arena of rank 1 | ..
///
/// Only schedulers use the metadata before the tags; a rank maps its arena and its tags, and does
/// not read the rest. Everything that more than one process writes is a single atomic word that is
/// complete by itself.
namespace kvferry::cpu_tier {

/// Most ranks of an engine on one node.
inline constexpr std::uint32_t kMaxTierRanks = 63;
/// Every part begins at a multiple of this: a page on most machines, and more than a cache line.
inline constexpr std::uint64_t kTierPageBytes = 4096;

/// How the memory is divided. All instances of a tier use the same division.
struct TierShape {
  std::uint32_t num_chunks = 0;
  /// Number of chunks of one rank. Each chunk has slots of one size, which its owner chooses.
  std::uint64_t chunk_bytes = 0;
  /// Most slots of a chunk.
  std::uint32_t max_chunk_slots = 0;
  std::uint32_t num_ranks = 0;
  bool operator==(const TierShape&) const = default;
};

/// An engine instance. A process that holds the member lock of a base claims the record with one
/// compare-and-swap of `lock` from 0 to the base. The holder of the death lock of that base sets it
/// to 0 again.
struct alignas(64) InstanceRecord {
  std::atomic<std::uint64_t> lock;   ///< LockBase; 0: free.
  std::atomic<std::uint64_t> epoch;  ///< Rises whenever the record becomes free.
  std::atomic<std::uint64_t> name_space;
  std::atomic<std::uint32_t> weight;
  std::atomic<std::uint32_t> most_chunks;
  std::atomic<std::uint32_t> num_chunks;
  /// The rest are the instance's announcements for chunk_fairness.hpp.
  std::atomic<std::uint32_t> num_wanted_chunks;
  /// How long its next victim has been unused.
  std::atomic<std::uint32_t> coldest_seconds;
  /// Rises with each announcement. It is not a time, because processes can have different clocks
  /// (time name spaces). Each process records by its own clock when it saw this number change.
  std::atomic<std::uint32_t> num_told;
  /// Not 0: its copies may continue for ever after its processes are gone
  /// (TierDirectory::Identity::kForEver).
  std::atomic<std::uint64_t> copies_never_end;
  /// A text for messages.
  std::array<std::atomic<std::uint64_t>, 17> name;
};
static_assert(sizeof(InstanceRecord) == 192);

/// The stamp of a slot's key: the generation in its word, and the division of its chunk.
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

/// A chunk. `owner` changes by compare-and-swap. Only the owner writes the rest, except for the
/// last three fields. All of it stays when the chunk loses its owner, so that its contents can be
/// read and taken over.
struct alignas(64) ChunkRecord {
  std::atomic<std::uint64_t> owner;  ///< ChunkOwner.
  /// Number of slots in use, from the first; 0: the chunk was never divided.
  std::atomic<std::uint32_t> num_slots;
  /// Index among the classes that have this number of slots.
  std::atomic<std::uint32_t> slab_class;
  std::atomic<std::uint64_t> name_space;
  /// Rises whenever an instance is about to quarantine slots of it in a sweep. Its owner measures
  /// the grace period by its own clock, from the moment at which it first saw this number.
  std::atomic<std::uint64_t> num_quarantines;
  /// Rises after another instance than the owner has withdrawn a slot of it.
  std::atomic<std::uint64_t> num_withdrawals;
  /// Not 0: its quarantined slots stay that until the tier is created again, because an instance
  /// whose copies may continue for ever was filling some of them.
  std::atomic<std::uint64_t> quarantine_never_ends;
};

/// The key of a slot. It is written while the slot is filling, and read under a lease, or without
/// one for a first look. A half-written key, or one that another program has written, fails its
/// check. The check also covers the slot, its generation and the division of its chunk. So a key
/// that lies next to another slot's word, is older than its word, or belongs to an earlier division
/// is not valid.
struct SlotKey {
  static constexpr std::size_t kKeyWords = sizeof(BlockKey) / sizeof(std::uint64_t);
  std::array<std::atomic<std::uint64_t>, kKeyWords> key;
  std::atomic<std::uint64_t> name_space;
  std::atomic<std::uint64_t> check;  ///< Checksum of everything else in 40 bits, below the stamp.

  struct Content {
    BlockKey key;
    std::uint64_t name_space = 0;
    std::uint32_t stamp = 0;  ///< 24 bits: slot_stamp() when this was written.
  };

  /// `slot_number`: the number of this key's slot among all slots of the tier.
  void store(std::uint64_t slot_number, const Content& content);
  /// Returns nothing if the key is not complete, or belongs to another slot.
  [[nodiscard]] std::optional<Content> load(std::uint64_t slot_number) const;
};

/// A slot, in one cache line: an instance that leases another instance's slot also reads its key,
/// and an instance that fills a slot writes both.
struct alignas(64) SlotLine {
  std::atomic<std::uint64_t> word;  ///< SlotWord.
  SlotKey key;
};
static_assert(sizeof(SlotLine) == 64);

/// Where the parts begin, in bytes from the beginning of the file.
struct TierPlaces {
  std::uint64_t instances = 0;
  std::uint64_t chunks = 0;
  std::uint64_t hints = 0;
  std::uint64_t slots = 0;
  std::uint64_t tags = 0;  ///< Of rank 0: a word for each slot; those of the others follow.
  std::uint64_t rank_tag_bytes = 0;  ///< Of one rank, in whole pages.
  std::uint64_t arenas = 0;          ///< Also the end of the metadata.
  std::uint64_t end = 0;
  std::uint64_t num_hints = 0;
};

/// The places in a file with pages of `page_bytes`. Throws ConfigError for an impossible shape: a
/// zero, too many ranks, or 2^32 slots or more.
[[nodiscard]] TierPlaces tier_places(const TierShape& shape, std::uint64_t page_bytes);

}  // namespace kvferry::cpu_tier
