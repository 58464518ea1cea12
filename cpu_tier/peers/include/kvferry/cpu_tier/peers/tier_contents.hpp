// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/peers/tier_records.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvferry::cpu_tier {

/// A change since the last look: a slot of a shared tier now holds a key, or no longer holds it.
struct ContentChange {
  BlockKey key;            ///< The engine's own hash, without weights.
  std::uint64_t slot = 0;  ///< TierRecords::number_of().
  bool readable = false;
  bool operator==(const ContentChange&) const = default;
};

/// Tracks the blocks in a shared tier that this instance could load, whichever instance stored
/// them, living or dead. It looks at the words of all slots from time to time. If a slot changes
/// and changes back between two looks, the change is missed. Two slots can hold the same key.
///
/// The records outlive this. One thread at a time uses it, which need not be the owner's thread.
class TierContents {
 public:
  explicit TierContents(const TierRecords& records);

  /// Continues where the last call ended and goes through all chunks once at most. It stops early,
  /// at the end of a chunk, when it has found `most` changes; fewer changes mean that it has looked
  /// at every slot. For each slot, the old key comes before the new one. Blocks of weights other
  /// than `weights` are ignored. O(slots): one cache line for each.
  [[nodiscard]] std::vector<ContentChange> take_changes(std::size_t most,
                                                        WeightsId weights = WeightsId());

 private:
  struct Seen {
    std::uint32_t stamp = 0;  ///< Stamp of the word when the key was read; 0: not readable.
    BlockKey key;             ///< With 0 bytes: no key.
  };

  void look_at(ChunkId chunk, std::vector<ContentChange>& changes);
  void look_at(SlotPlace place, Seen& seen, std::vector<ContentChange>& changes) const;
  void replace(SlotPlace place, Seen& seen, const BlockKey& key,
               std::vector<ContentChange>& changes) const;

  const TierRecords& records_;
  std::vector<std::vector<Seen>> seen_;  ///< By chunk.
  std::uint64_t name_space_ = 0;
  WeightsId weights_;
  ChunkId next_;
};

}  // namespace kvferry::cpu_tier
