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

/// How much the staging rings hold, and what a block takes of that. Ranks have rings and blocks of
/// different sizes: the unit is a byte of the first rank, of which the largest block has as many as
/// its slots. On no rank does a block of another class take a larger part of the ring.
struct RingRoom {
  std::uint64_t num_bytes = 0;             ///< Of the smallest ring; 0: some rank has none.
  std::vector<std::uint64_t> block_bytes;  ///< By slab class.
};

/// What the ranks said of themselves, compared with what the scheduler side was told (G8).
class RankRegister {
 public:
  explicit RankRegister(const SchedulerOptions& expected)
      : expected_(expected), ranks_(expected.world_size) {}

  /// Takes over what a report says of its rank: the topology, more slots. Throws TopologyError
  /// naming both sides if it is not the expected one, and ProtocolError for what no rank can say.
  void take(const StepReport& report);
  /// Throws TopologyError for a rank that cannot be.
  void expect_rank(RankId rank) const;

  /// "ranks 1, 3 of 4 have not registered; registered: rank 0 (world size 4, ...)": for the error
  /// when they stay away.
  [[nodiscard]] std::string describe_missing() const;
  [[nodiscard]] std::uint32_t num_ready() const { return num_ready_; }
  [[nodiscard]] bool all_ready() const { return num_ready_ == ranks_.size(); }
  /// The chunks that every rank has ready, and those that every rank will have; once all_ready().
  [[nodiscard]] std::uint32_t least_chunks() const;
  [[nodiscard]] std::uint32_t least_max_chunks() const;
  /// Once all_ready().
  [[nodiscard]] RingRoom ring_room() const;
  /// The chunks that become ready on every rank without an order, and whether all of them have on
  /// each rank; once all_ready().
  [[nodiscard]] std::uint32_t least_first_chunks() const;
  [[nodiscard]] bool have_grown() const;
  /// How many chunks are to come and go together, so that every rank's memory does; 0: some rank's
  /// memory stays as it is. Once all_ready().
  [[nodiscard]] std::uint32_t chunks_per_run() const;
  /// Digest of what all ranks said of the bytes of their blocks, in the order of the ranks; 0 if
  /// none said anything. Once all_ready().
  [[nodiscard]] std::uint64_t joint_probe() const;

 private:
  void expect_classes(std::span<const RankSlots> classes, RankId rank) const;
  /// If all were of the first class.
  [[nodiscard]] std::string slots_text(std::uint32_t num_chunks) const;
  [[nodiscard]] std::uint32_t least(std::uint32_t RankTopology::*figure) const;
  void add(RankId rank, const RankTopology& topology);
  void grow(RankId rank, std::uint32_t num_chunks);

  const SchedulerOptions& expected_;
  std::vector<std::optional<RankTopology>> ranks_;
  std::uint32_t num_ready_ = 0;
};

}  // namespace kvferry::connector
