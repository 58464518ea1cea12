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

/// A slot of a shared tier holds a key since the last look at it, or holds it no more.
struct ContentChange {
  BlockKey key;            ///< The engine's own hash, of no weights.
  std::uint64_t slot = 0;  ///< TierRecords::number_of().
  bool readable = false;
  bool operator==(const ContentChange&) const = default;
};

/// What a shared tier holds that this instance could load, whichever instance stored it, and
/// whether that one lives: found by looking at the words of all slots, now and then. A slot that
/// changes and changes back between two looks is not noticed. Two slots may hold one key.
///
/// The records outlive this. One thread at a time, which need not be the owner's.
class TierContents {
 public:
  explicit TierContents(const TierRecords& records);

  /// Goes on where the last call ended, through all chunks once at most, and ends early, after a
  /// whole chunk, when `most` changes are found. Fewer than that: every slot was looked at. Of one
  /// slot, what it held comes before what it holds. Blocks that other weights than `weights`
  /// computed are not there. O(slots): a cache line for each.
  [[nodiscard]] std::vector<ContentChange> take_changes(std::size_t most,
                                                        WeightsId weights = WeightsId());

 private:
  struct Seen {
    std::uint32_t stamp = 0;  ///< Of the word that the key was read under; 0: not readable.
    BlockKey key;             ///< Of no bytes: none.
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
