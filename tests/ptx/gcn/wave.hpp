// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gcn/instruction.hpp"
#include "interpreter/copy_unit.hpp"
#include "interpreter/global_memory.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace kvferry::gcn {

/// One wave of 64 lanes, in step, with loads that arrive when s_waitcnt says so and not before.
/// Registers begin with bytes of chance.
class Wave {
 public:
  static constexpr std::uint32_t kNumLanes = 64;

  /// All outlive the wave.
  Wave(const Kernel& kernel, ptx::GlobalMemory& memory, ptx::Random& random);

  /// Sets a register before the start.
  void set_scalar(std::uint16_t reg, std::uint32_t value) { scalars_[reg] = value; }
  void set_vector(std::uint16_t reg, std::uint32_t lane, std::uint32_t value) {
    vectors_[reg][lane] = value;
  }
  void set_exec(std::uint64_t lanes) { write_mask(kExec, lanes); }

  /// Runs to s_endpgm; returns the instructions. Throws ptx::Fault: kBounds, kAlignment,
  /// kWrittenTwice, kReadBeforeWrite (a register that a load has not filled is used), kStuck.
  std::uint64_t run(std::uint64_t max_instructions);

 private:
  /// A load under way: what will be in which registers.
  struct Load {
    Operand to;
    std::uint64_t lanes;
    std::vector<std::uint32_t> values;  ///< Lane after lane, each with all of its registers.
  };

  // wave.cpp: registers.
  [[nodiscard]] std::uint64_t scalar(const Operand& operand, unsigned size) const;
  [[nodiscard]] std::uint64_t lane_value(const Operand& operand, unsigned size,
                                         std::uint32_t lane) const;
  [[nodiscard]] std::uint64_t mask(std::uint16_t reg) const;
  void write_mask(std::uint16_t reg, std::uint64_t value);
  void write_scalar(const Operand& operand, unsigned size, std::uint64_t value);
  void write_lane(const Operand& operand, unsigned size, std::uint32_t lane, std::uint64_t value);
  void check_arrived(const Operand& operand) const;
  [[nodiscard]] bool is_active(std::uint32_t lane) const { return (mask(kExec) >> lane & 1U) != 0; }

  // wave_execute.cpp: what an instruction does.
  void step(const Instruction& one);
  void step_scalar(const Instruction& one);
  void step_vector(const Instruction& one);
  void step_lane(const Instruction& one, std::uint32_t lane, std::uint64_t& carries);
  [[nodiscard]] std::uint64_t packed(const Instruction& one, std::uint32_t lane) const;
  [[nodiscard]] std::uint32_t reciprocal(std::uint32_t value);

  // wave_memory.cpp
  void load(const Instruction& one);
  void store(const Instruction& one);
  void add(const Instruction& one);
  void permute(const Instruction& one);
  void load_scalars(const Instruction& one);
  void wait(const Instruction& one);
  void arrive(const Load& load);

  const Kernel& kernel_;
  ptx::GlobalMemory& memory_;
  ptx::Random& random_;
  std::array<std::uint32_t, kNumScalars> scalars_;
  std::vector<std::array<std::uint32_t, kNumLanes>> vectors_;
  bool scc_ = false;
  std::size_t next_ = 0;
  bool is_done_ = false;
  /// Accesses that vmcnt counts, oldest first; stores have no registers.
  std::deque<Load> vector_loads_;
  /// Those that lgkmcnt counts: of memory, in no order; of other lanes, oldest first.
  std::deque<Load> scalar_loads_;
};

}  // namespace kvferry::gcn
