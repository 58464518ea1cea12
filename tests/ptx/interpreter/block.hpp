// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/arithmetic.hpp"
#include "interpreter/copy_unit.hpp"
#include "interpreter/global_memory.hpp"
#include "interpreter/kernel.hpp"
#include "interpreter/lane.hpp"
#include "interpreter/launch.hpp"
#include "interpreter/mbarrier.hpp"
#include "interpreter/shared_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace kvferry::ptx {

/// One block (CTA) of a launch: its lanes, its shared memory, its copies under way.
class Block {
 public:
  /// All outlive the block.
  Block(const Kernel& kernel, const LaunchShape& shape, std::uint32_t number,
        std::span<const std::byte> parameter, GlobalMemory& memory);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// Runs one lane for some instructions, or a part of a bulk copy; returns the instructions.
  /// Throws Fault.
  std::uint64_t advance(Random& random);
  [[nodiscard]] bool is_done() const { return live_.empty(); }

 private:
  static constexpr std::uint32_t kWarpLanes = 32;

  // block.cpp: who runs, and who waits.
  std::uint64_t run_some(Lane& lane, std::uint64_t most, Random& random);
  bool can_run(Lane& lane);
  bool release_warp(const Lane& lane);
  void shuffle(const std::vector<Lane*>& together) const;
  bool see_phase(Lane& lane);
  void end_lane(Lane& lane);
  void check_finished() const;
  [[noreturn]] void fail_stuck() const;
  [[nodiscard]] std::string place(const Lane& lane, const Instruction& one) const;

  // block_memory.cpp: registers, the parameter, global memory, flow.
  void step(Lane& lane, const Instruction& one, Random& random);
  void set(Lane& lane, int reg, std::uint64_t value) const;
  [[nodiscard]] std::uint64_t value(const Lane& lane, int reg) const;
  [[nodiscard]] std::uint64_t value(const Lane& lane, const Operand& operand) const;
  [[nodiscard]] std::uint64_t special(const Lane& lane, Special which) const;
  [[nodiscard]] std::uint64_t address(const Lane& lane, const Operand& operand) const;
  void calculate(Lane& lane, const Instruction& one) const;
  void load_parameter(Lane& lane, const Instruction& one) const;
  void load_global(Lane& lane, const Instruction& one) const;
  void store_global(const Lane& lane, const Instruction& one) const;
  void add_global(const Lane& lane, const Instruction& one) const;
  void move(Lane& lane, const Instruction& one) const;
  void wait_for_warp(Lane& lane, const Instruction& one) const;

  // block_bulk.cpp: mbarriers, bulk copies and their waits.
  void step_bulk(Lane& lane, const Instruction& one, Random& random);
  void init_barrier(Lane& lane, const Instruction& one);
  void wait_for_phase(Lane& lane, const Instruction& one, Random& random);
  void issue_load(const Lane& lane, const Instruction& one);
  void issue_store(Lane& lane, const Instruction& one);
  void wait_for_groups(Lane& lane, const Instruction& one);
  [[nodiscard]] std::uint32_t shared_address(const Lane& lane, const Operand& operand) const;
  MBarrier& barrier_at(const Lane& lane, std::uint32_t address);

  const Kernel& kernel_;
  const LaunchShape& shape_;
  std::uint32_t number_;
  std::span<const std::byte> parameter_;
  GlobalMemory& memory_;
  SharedMemory shared_;
  std::map<std::uint32_t, MBarrier> barriers_;
  std::vector<Lane> lanes_;
  /// Numbers of the lanes that have not ended.
  std::vector<std::uint32_t> live_;
  CopyUnit copies_;
};

}  // namespace kvferry::ptx
