// SPDX-License-Identifier: Apache-2.0
#include "rank_register.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/mixed_bits.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvferry::connector {
namespace {

/// If the ranks' pieces have different borders, the pieces at the two ends of a run stay.
constexpr std::uint32_t kPiecesPerRun = 8;

void expect_equal(const char* what, std::uint64_t of_rank, std::uint64_t of_scheduler,
                  RankId rank) {
  if (of_rank == of_scheduler) return;
  throw TopologyError("rank " + std::to_string(rank.value()) + " has " + what + " " +
                      std::to_string(of_rank) + ", the scheduler was told " +
                      std::to_string(of_scheduler) +
                      ": every process of the engine must start with the same configuration");
}

}  // namespace

void RankRegister::expect_rank(RankId rank) const {
  if (rank.value() < ranks_.size()) return;
  throw TopologyError("a worker reports as rank " + std::to_string(rank.value()) +
                      ", the scheduler was told a world size of " + std::to_string(ranks_.size()) +
                      ": every process of the engine must start with the same configuration");
}

void RankRegister::take(const StepReport& report) {
  const RankId rank = report.rank;
  expect_rank(rank);
  if (report.topology) add(rank, *report.topology);
  if (report.num_ready_chunks) grow(rank, *report.num_ready_chunks);
}

void RankRegister::add(RankId rank, const RankTopology& topology) {
  if (ranks_[rank.value()]) {
    throw TopologyError("rank " + std::to_string(rank.value()) +
                        " registered twice: two workers run under one rank, or one was restarted"
                        " without its engine");
  }
  expect_equal("world size", topology.world_size, expected_.world_size, rank);
  expect_equal("GPU blocks", topology.num_blocks, expected_.num_blocks, rank);
  expect_classes(topology.classes, rank);
  const ReplicaPlace place =
      expected_.replicas.empty() ? ReplicaPlace{} : expected_.replicas[rank.value()];
  expect_equal("ranks that share its KV cache", topology.replicas.size, place.size, rank);
  expect_equal("the place among them", topology.replicas.index, place.index, rank);
  if (topology.num_chunks == 0 || topology.max_chunks < topology.num_chunks) {
    throw TopologyError("rank " + std::to_string(rank.value()) + " has " +
                        slots_text(topology.num_chunks) + " of " + slots_text(topology.max_chunks) +
                        " ready in its arena; expected at least one, and no more than all");
  }
  RankTopology& added = ranks_[rank.value()].emplace(topology);
  if (added.first_chunks == 0) added.first_chunks = added.max_chunks;
  if (added.first_chunks > added.max_chunks || added.num_chunks > added.first_chunks) {
    throw TopologyError(
        "rank " + std::to_string(rank.value()) + " has " + slots_text(added.num_chunks) +
        " ready, begins with " + slots_text(added.first_chunks) + " and can have " +
        slots_text(added.max_chunks) + "; expected: ready <= begins with <= can have");
  }
  ++num_ready_;
}

void RankRegister::expect_classes(std::span<const RankSlots> classes, RankId rank) const {
  expect_equal("sizes of blocks", classes.size(), expected_.classes.size(), rank);
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const SlabClass& expected = expected_.classes[i];
    const std::uint64_t told = expected.slot_bytes[rank.value()];
    if (told != 0) expect_equal("bytes per block", classes[i].slot_bytes, told, rank);
    expect_equal("slots per chunk", classes[i].slots_per_chunk, expected.slots_per_chunk, rank);
  }
}

void RankRegister::grow(RankId rank, std::uint32_t num_chunks) {
  std::optional<RankTopology>& of = ranks_[rank.value()];
  if (!of) {
    throw ProtocolError("rank " + std::to_string(rank.value()) +
                        " says how many slots it has before it has registered");
  }
  if (num_chunks < of->num_chunks) {
    throw ProtocolError("rank " + std::to_string(rank.value()) + " had " +
                        slots_text(of->num_chunks) + " and now says " + slots_text(num_chunks) +
                        ": slots that are ready stay so");
  }
  if (num_chunks > of->first_chunks) {
    throw ProtocolError("rank " + std::to_string(rank.value()) + " was expected to have at most " +
                        slots_text(of->first_chunks) + " and now says " + slots_text(num_chunks));
  }
  of->num_chunks = num_chunks;
}

std::string RankRegister::slots_text(std::uint32_t num_chunks) const {
  return std::to_string(num_chunks * expected_.classes.front().slots_per_chunk) + " slots";
}

std::string RankRegister::describe_missing() const {
  std::string missing;
  std::string present;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    std::string& list = ranks_[rank] ? present : missing;
    if (!list.empty()) list += ", ";
    list += std::to_string(rank);
    if (ranks_[rank]) {
      list += " (world size " + std::to_string(ranks_[rank]->world_size) + ", " +
              slots_text(ranks_[rank]->num_chunks) + ")";
    }
  }
  return "rank " + missing + " of the world size " + std::to_string(ranks_.size()) +
         " that the scheduler was told has not registered; registered: " +
         (present.empty() ? "none" : "rank " + present);
}

std::uint32_t RankRegister::least(std::uint32_t RankTopology::*figure) const {
  std::uint32_t least = *ranks_.front().*figure;
  for (const auto& rank : ranks_) least = std::min(least, *rank.*figure);
  return least;
}

std::uint32_t RankRegister::least_chunks() const { return least(&RankTopology::num_chunks); }
std::uint32_t RankRegister::least_max_chunks() const { return least(&RankTopology::max_chunks); }
std::uint32_t RankRegister::least_first_chunks() const {
  return least(&RankTopology::first_chunks);
}
bool RankRegister::have_grown() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank->num_chunks == rank->first_chunks; });
}
std::uint32_t RankRegister::chunks_per_run() const {
  const std::uint32_t fewest = least(&RankTopology::chunks_per_piece);
  if (fewest == 0) return 0;
  std::uint32_t most = fewest;
  for (const auto& rank : ranks_) most = std::max(most, rank->chunks_per_piece);
  return most == fewest ? most : kPiecesPerRun * most;
}

RingRoom RankRegister::ring_room() const {
  const auto largest = [](const RankTopology& rank) {
    std::uint64_t most = 1;
    for (const RankSlots& of : rank.classes) most = std::max(most, of.slot_bytes);
    return most;
  };
  const std::uint64_t unit = largest(*ranks_.front());
  RingRoom room{least(&RankTopology::ring_blocks) * unit, {}};
  room.block_bytes.resize(ranks_.front()->classes.size(), 1);
  for (const auto& rank : ranks_) {
    const std::uint64_t its_unit = largest(*rank);
    for (std::size_t i = 0; i < room.block_bytes.size(); ++i) {
      const double part = static_cast<double>(rank->classes[i].slot_bytes) /
                          static_cast<double>(its_unit) * static_cast<double>(unit);
      room.block_bytes[i] =
          std::max(room.block_bytes[i], static_cast<std::uint64_t>(std::ceil(part)));
    }
  }
  return room;
}

std::uint64_t RankRegister::joint_probe() const {
  std::uint64_t joint = 0;
  bool any = false;
  for (const auto& rank : ranks_) {
    joint = mixed_bits(joint ^ mixed_bits(rank->probe)) + 1;
    any = any || rank->probe != 0;
  }
  return any ? joint : 0;
}

}  // namespace kvferry::connector
