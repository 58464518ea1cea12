// SPDX-License-Identifier: Apache-2.0
#include "engine_tier.hpp"

#include "kvferry/cpu_tier/peers/tier_peers.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace kvferry::connector {

std::unique_ptr<cpu_tier::Tier> make_tier(const SchedulerOptions& options, PeerJournal* answers) {
  std::vector<std::uint32_t> slots_per_chunk;
  for (const SlabClass& of : options.classes) slots_per_chunk.push_back(of.slots_per_chunk);
  std::unique_ptr<cpu_tier::Peers> peers =
      options.replayed_peers ? options.replayed_peers() : cpu_tier::peers_in(options.shared_tier);
  if (answers != nullptr && options.shares_tier()) peers = answers->watched(std::move(peers));
  return std::make_unique<cpu_tier::Tier>(options.max_chunks, slots_per_chunk, options.tier,
                                          std::move(peers));
}

}  // namespace kvferry::connector
