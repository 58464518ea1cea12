// SPDX-License-Identifier: Apache-2.0
#include "chunk_fairness.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {
namespace {

/// A chunk goes to another instance if it has been unused for this many times as long, and this
/// many seconds more. So no chunk goes back and forth between two similar instances.
constexpr std::uint64_t kTimesOlder = 2;
constexpr std::uint64_t kSecondsOlder = 2;
/// The part of its chunks that an instance gives up at a time.
constexpr std::uint32_t kPartAtATime = 16;

}  // namespace

std::uint32_t num_chunks_to_give(std::span<const ChunkDemand> instances, std::size_t self,
                                 std::uint32_t num_chunks) {
  const ChunkDemand& mine = instances[self];
  if (mine.num_chunks == 0) return 0;
  std::uint64_t sum_of_weights = 0;
  for (const ChunkDemand& each : instances) {
    // An instance that neither has nor wants chunks leaves its part to the others.
    if (each.num_chunks > 0 || each.num_wanted > 0) sum_of_weights += each.weight;
  }
  const auto part_of = [&](const ChunkDemand& one) {
    return sum_of_weights == 0 ? 0 : std::uint64_t{num_chunks} * one.weight / sum_of_weights;
  };
  std::uint64_t num_short = 0;
  std::uint64_t num_warmer = 0;
  for (std::size_t i = 0; i < instances.size(); ++i) {
    const ChunkDemand& other = instances[i];
    if (i == self || other.num_wanted == 0) continue;
    if (other.num_chunks < part_of(other)) {
      num_short += std::min<std::uint64_t>(other.num_wanted, part_of(other) - other.num_chunks);
    }
    if (mine.coldest_seconds >= kTimesOlder * other.coldest_seconds + kSecondsOlder) {
      num_warmer += other.num_wanted;
    }
  }
  const std::uint64_t my_part = part_of(mine);
  const std::uint64_t num_above = mine.num_chunks > my_part ? mine.num_chunks - my_part : 0;
  const std::uint64_t wished = std::max(std::min(num_short, num_above), num_warmer);
  const std::uint64_t most = std::max<std::uint64_t>(mine.num_chunks / kPartAtATime, 1);
  return static_cast<std::uint32_t>(std::min({wished, most, std::uint64_t{mine.num_chunks}}));
}

}  // namespace kvferry::cpu_tier
