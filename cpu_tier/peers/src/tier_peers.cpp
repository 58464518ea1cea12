// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_peers.hpp"

#include "kvferry/base/check.hpp"

#include "tier_peer_slots.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {
namespace {

/// A full tier asks with each reservation, and a search costs as much as some twenty blocks of it.
/// tend() searches in any case, ten times a second.
constexpr std::uint32_t kMostSkips = 15;

}  // namespace

std::unique_ptr<PeerSlots> TierPeers::slots_of(const ChunkShape& shape, BlockIndex& index,
                                               std::uint32_t max_slots) {
  return std::make_unique<TierPeerSlots>(SharedSlots(directory_, shape), index, max_slots);
}

TakenChunks TierPeers::take_chunks(std::uint32_t most) {
  if (most == 0) return {};
  if (num_skips_left_ > 0) {
    --num_skips_left_;
    return {};
  }
  const std::optional<ChunkId> chunk = directory_.take_chunk();
  if (!chunk) {
    num_unowned_ = 0;
    num_skips_left_ = kMostSkips;
    return {};
  }
  num_unowned_ -= std::min(num_unowned_, 1U);
  TakenChunks taken{*chunk, 1};
  if (directory_.records().is_of_name_space(*chunk))
    taken.holds = directory_.records().shape_of(*chunk);
  return taken;
}

bool TierPeers::divide(const TakenChunks& chunks, const ChunkShape& shape) {
  bool all = true;
  ChunkId chunk = chunks.first;
  for (std::uint32_t i = 0; i < chunks.count; ++i, chunk = chunk.next()) {
    if (directory_.clear(chunk)) {
      directory_.divide(chunk, shape);
    } else {
      static_cast<void>(directory_.give_up(chunk));
      all = false;
    }
  }
  return all;
}

void TierPeers::put_back(ChunkId first, std::uint32_t count) {
  KVFERRY_CHECK(count == 0, "chunk " + std::to_string(first.value()) +
                                " of a shared tier was never out of use");
}

bool TierPeers::give_up(ChunkId chunk) {
  if (!directory_.give_up(chunk)) return false;
  ++num_unowned_;
  num_skips_left_ = 0;
  return true;
}

std::uint32_t TierPeers::tend(std::uint32_t num_wanted, std::chrono::seconds coldest_age) {
  directory_.tell(num_wanted, coldest_age);
  num_unowned_ = directory_.look_around();
  num_skips_left_ = 0;
  const std::uint32_t num_to_give = directory_.num_chunks_to_give();
  return num_to_give - std::min(num_to_give, num_unowned_);
}

std::unique_ptr<Peers> peers_in(TierDirectory* directory) {
  if (directory == nullptr) return no_peers();
  return std::make_unique<TierPeers>(*directory);
}

}  // namespace kvferry::cpu_tier
