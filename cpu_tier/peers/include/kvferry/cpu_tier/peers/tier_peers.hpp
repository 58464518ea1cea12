// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/cpu_tier/slots/peers.hpp"

#include <chrono>
#include <cstdint>
#include <memory>

namespace kvferry::cpu_tier {

/// The peers of a tier that engine instances share. Works through the tier's directory.
class TierPeers final : public Peers {
 public:
  /// The directory outlives this.
  explicit TierPeers(TierDirectory& directory) : directory_(directory) {}

  [[nodiscard]] std::unique_ptr<PeerSlots> slots_of(const ChunkShape& shape, BlockIndex& index,
                                                    std::uint32_t max_slots) override;
  void grow_to(std::uint32_t num_chunks) override { directory_.set_reach(num_chunks); }
  /// None, because a peer can take any chunk without an owner.
  [[nodiscard]] std::uint32_t num_free_chunks() const override { return 0; }
  [[nodiscard]] std::uint32_t num_obtainable_chunks() const override { return num_unowned_; }
  /// Takes one chunk at most.
  [[nodiscard]] TakenChunks take_chunks(std::uint32_t most) override;
  [[nodiscard]] bool divide(const TakenChunks& chunks, const ChunkShape& shape) override;
  bool give_up(ChunkId chunk) override;
  /// Always false: the file's memory belongs to all engines, so no chunk is taken out of use.
  bool take_out(ChunkId, std::uint32_t) override { return false; }
  void put_back(ChunkId first, std::uint32_t count) override;
  [[nodiscard]] std::uint32_t tend(std::uint32_t num_wanted,
                                   std::chrono::seconds coldest_age) override;
  void narrow_name_space(std::uint64_t by) override { directory_.narrow_name_space(by); }
  void leave_name_space() override { directory_.leave_name_space(); }
  [[nodiscard]] bool outlives_tier() const override { return true; }

 private:
  TierDirectory& directory_;
  /// Number of chunks without an owner at the last look.
  std::uint32_t num_unowned_ = 0;
  /// Calls of take_chunks() that skip the search, because a recent search found no chunk.
  std::uint32_t num_skips_left_ = 0;
};

/// Makes the peers of the directory's tier. The directory outlives the result. Null: no_peers().
[[nodiscard]] std::unique_ptr<Peers> peers_in(TierDirectory* directory);

}  // namespace kvferry::cpu_tier
