// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_options.hpp"
#include "kvferry/connector/wire/step_report.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvferry::connector {

/// How much the staging rings hold, and how much of that a block takes. Ranks have rings and blocks
/// of different sizes, so the unit is a byte of the first rank: its largest block has as many bytes
/// as its slots. On every rank blocks of the other classes take no larger part of the ring.
struct RingRoom {
  std::uint64_t num_bytes = 0;             ///< Of the smallest ring; 0 if some rank has none.
  std::vector<std::uint64_t> block_bytes;  ///< By slab class.
};

/// What the ranks reported about themselves, compared with the scheduler side's options (G8).
class RankRegister {
 public:
  explicit RankRegister(const SchedulerOptions& expected)
      : expected_(expected), ranks_(expected.world_size) {}

  /// Takes over what a report says about its rank: the topology, or more slots. Throws
  /// TopologyError with both values if the topology is not the expected one, and ProtocolError for
  /// a report that no rank can make.
  void take(const StepReport& report);
  /// Throws TopologyError for a rank that cannot exist.
  void expect_rank(RankId rank) const;

  /// "ranks 1, 3 of 4 have not registered; registered: rank 0 (world size 4, ...)": for the error
  /// about missing ranks.
  [[nodiscard]] std::string describe_missing() const;
  [[nodiscard]] std::uint32_t num_ready() const { return num_ready_; }
  [[nodiscard]] bool all_ready() const { return num_ready_ == ranks_.size(); }
  /// The chunks that every rank has ready, and those that every rank will have. Call it after
  /// all_ready().
  [[nodiscard]] std::uint32_t least_chunks() const;
  [[nodiscard]] std::uint32_t least_max_chunks() const;
  /// Call it after all_ready().
  [[nodiscard]] RingRoom ring_room() const;
  /// The chunks that become ready on every rank without an order, and whether all of them are ready
  /// on every rank. Call it after all_ready().
  [[nodiscard]] std::uint32_t least_first_chunks() const;
  [[nodiscard]] bool have_grown() const;
  /// How many chunks to resize together, so that the memory of every rank can follow; 0: the memory
  /// of some rank cannot be resized. Call it after all_ready().
  [[nodiscard]] std::uint32_t chunks_per_run() const;
  /// Digest of what all ranks reported about the bytes of their blocks, in the order of the ranks;
  /// 0 if none reported anything. Call it after all_ready().
  [[nodiscard]] std::uint64_t joint_probe() const;

 private:
  void expect_classes(std::span<const RankSlots> classes, RankId rank) const;
  /// The number of slots as text, if all were of the first class.
  [[nodiscard]] std::string slots_text(std::uint32_t num_chunks) const;
  [[nodiscard]] std::uint32_t least(std::uint32_t RankTopology::*figure) const;
  void add(RankId rank, const RankTopology& topology);
  void grow(RankId rank, std::uint32_t num_chunks);

  const SchedulerOptions& expected_;
  std::vector<std::optional<RankTopology>> ranks_;
  std::uint32_t num_ready_ = 0;
};

}  // namespace kvferry::connector
