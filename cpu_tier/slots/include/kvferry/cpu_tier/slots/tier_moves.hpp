// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvferry::cpu_tier {

/// Why a key became readable, or is no longer readable.
enum class MoveKind : std::uint8_t {
  kCommitted,  ///< It became readable by commit(). That is not noted, because the caller knows it.
  kCame,       ///< It became readable with a chunk that peers had.
  kEvicted,    ///< To make room for others of its class.
  kForgotten,  ///< Because it is no longer to be found, or its bytes are in doubt.
  kChunkGone,  ///< Its chunk left the class.
  kWithdrawn   ///< Because its bytes are not what was stored.
};

struct KeyMove {
  std::uint64_t key = 0;  ///< BlockKey::mixed().
  SlotId slot;
  MoveKind kind = MoveKind::kEvicted;
};

/// What a tier with TierOptions::key_moves notes about its keys, for a recorder. A view of the
/// tier, which outlives it. As thread-safe as the tier.
class TierMoves {
 public:
  explicit TierMoves(Tier& tier) : tier_(&tier) {}

  /// Most that are noted for a class between two calls. What comes after them is left out.
  static constexpr std::size_t kMost = std::size_t{1} << 20U;

  /// Moves of a class since the last call, the oldest first, into `moves`, whose memory the tier
  /// takes for the next ones. O(1).
  void take(SlabClassId of, std::vector<KeyMove>& moves);

 private:
  Tier* tier_;
};

}  // namespace kvferry::cpu_tier
