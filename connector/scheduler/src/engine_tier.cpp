// SPDX-License-Identifier: Apache-2.0
#include "engine_tier.hpp"

#include "kvferry/cpu_tier/peers/tier_peers.hpp"

#include <cstdint>
#include <vector>

namespace kvferry::connector {

std::unique_ptr<cpu_tier::Tier> make_tier(const SchedulerOptions& options) {
  std::vector<std::uint32_t> slots_per_chunk;
  for (const SlabClass& of : options.classes) slots_per_chunk.push_back(of.slots_per_chunk);
  return std::make_unique<cpu_tier::Tier>(options.max_chunks, slots_per_chunk, options.tier,
                                          cpu_tier::peers_in(options.shared_tier));
}

}  // namespace kvferry::connector
