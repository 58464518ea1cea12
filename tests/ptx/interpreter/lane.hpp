// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/bulk_groups.hpp"
#include "interpreter/instruction.hpp"
#include "interpreter/knowledge.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvferry::ptx {

/// What a lane waits for.
enum class Waiting : std::uint8_t { kNothing, kWarp, kPhase, kGroupsRead, kGroupsWritten };

/// One thread of a block.
struct Lane {
  /// A lane that has not begun yet.
  Lane(std::uint32_t lane_number, int num_registers)
      : number(lane_number),
        registers(static_cast<std::size_t>(num_registers)),
        is_written(static_cast<std::size_t>(num_registers)) {}

  std::uint32_t number;
  bool has_ended = false;
  std::vector<std::uint64_t> registers;
  std::vector<std::uint8_t> is_written;
  /// Index of the next instruction.
  std::size_t next = 0;

  Waiting waiting = Waiting::kNothing;
  /// The instruction that made it wait.
  const Instruction* waits_at = nullptr;
  /// What it offers the lanes of its warp, while it waits at a shuffle.
  std::uint64_t offered = 0;
  /// kWarp: the lanes that have to come. kPhase: the mbarrier and the parity.
  std::uint32_t mask = 0;
  std::uint32_t barrier = 0;
  std::uint32_t parity = 0;
  /// kGroupsRead, kGroupsWritten: how many of its first groups.
  std::uint32_t num_groups = 0;

  BulkGroups groups;
  /// It has waited until its first so many groups had written.
  std::uint32_t num_groups_written = 0;
  Knowledge known;
  /// mbarriers that it has initialised and not fenced yet.
  std::vector<std::uint32_t> unfenced;
};

}  // namespace kvferry::ptx
