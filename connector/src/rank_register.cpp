// SPDX-License-Identifier: Apache-2.0
#include "rank_register.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <string>

namespace kvferry::connector {
namespace {

void expect_equal(const char* what, std::uint64_t of_rank, std::uint64_t of_scheduler,
                  RankId rank) {
  if (of_rank == of_scheduler) return;
  throw TopologyError("rank " + std::to_string(rank.value()) + " has " + what + " " +
                      std::to_string(of_rank) + ", the scheduler was told " +
                      std::to_string(of_scheduler) +
                      ": every process of the engine must start with the same configuration");
}

}  // namespace

void RankRegister::take(const StepReport& report) {
  const RankId rank = report.rank;
  if (rank.value() >= ranks_.size()) {
    throw TopologyError("a worker reports as rank " + std::to_string(rank.value()) +
                        ", the scheduler was told a world size of " +
                        std::to_string(ranks_.size()) +
                        ": every process of the engine must start with the same configuration");
  }
  if (!report.topology) return;
  const RankTopology& topology = *report.topology;
  if (ranks_[rank.value()]) {
    throw TopologyError("rank " + std::to_string(rank.value()) +
                        " registered twice: two workers run under one rank, or one was restarted"
                        " without its engine");
  }
  expect_equal("world size", topology.world_size, expected_.world_size, rank);
  expect_equal("GPU blocks", topology.num_blocks, expected_.num_blocks, rank);
  expect_equal("bytes per block", topology.slot_bytes, expected_.slot_bytes[rank.value()], rank);
  if (topology.num_slots == 0) {
    throw TopologyError("rank " + std::to_string(rank.value()) + " has no slot in its arena");
  }
  ranks_[rank.value()] = topology;
  ++num_ready_;
}

std::uint32_t RankRegister::least_slots() const {
  std::uint32_t least = ranks_.front()->num_slots;
  for (const auto& rank : ranks_) least = std::min(least, rank->num_slots);
  return least;
}

std::uint32_t RankRegister::least_ring_blocks() const {
  std::uint32_t least = ranks_.front()->ring_blocks;
  for (const auto& rank : ranks_) least = std::min(least, rank->ring_blocks);
  return least;
}

}  // namespace kvferry::connector
