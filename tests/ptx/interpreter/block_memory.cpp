// SPDX-License-Identifier: Apache-2.0
#include "interpreter/block.hpp"
#include "interpreter/fault.hpp"

#include <array>
#include <cstring>

namespace kvferry::ptx {
namespace {

void check_alignment(std::uint64_t address, std::uint32_t bytes) {
  if (address % bytes != 0) {
    throw Fault(Hazard::kAlignment,
                "an access of " + std::to_string(bytes) + " bytes is not aligned to them");
  }
}

constexpr std::size_t kMaxAccessBytes = 16;

}  // namespace

void Block::step(Lane& lane, const Instruction& one, Random& random) {
  switch (one.op) {
    case Op::kBranch:
      lane.next = one.target;
      return;
    case Op::kLoadParameter:
      return load_parameter(lane, one);
    case Op::kLoadGlobal:
      return load_global(lane, one);
    case Op::kStoreGlobal:
      return store_global(lane, one);
    case Op::kAddGlobal:
      return add_global(lane, one);
    case Op::kShuffle:
    case Op::kWarpBarrier:
      return wait_for_warp(lane, one);
    case Op::kMove:
      return move(lane, one);
    default:
      return one.op > Op::kWarpBarrier ? step_bulk(lane, one, random) : calculate(lane, one);
  }
}

void Block::set(Lane& lane, int reg, std::uint64_t value) const {
  lane.registers[static_cast<std::size_t>(reg)] = value;
  lane.is_written[static_cast<std::size_t>(reg)] = 1;
}

std::uint64_t Block::value(const Lane& lane, int reg) const {
  if (lane.is_written[static_cast<std::size_t>(reg)] == 0) {
    throw Fault(Hazard::kUndefined, "a register is read that nothing wrote");
  }
  return lane.registers[static_cast<std::size_t>(reg)];
}

std::uint64_t Block::value(const Lane& lane, const Operand& operand) const {
  switch (operand.kind) {
    case Operand::kRegister:
      return value(lane, operand.reg);
    case Operand::kImmediate:
      return operand.value;
    case Operand::kSpecial:
      return special(lane, operand.special);
    default:
      throw Fault(Hazard::kUndefined, "an operand without a value");
  }
}

std::uint64_t Block::special(const Lane& lane, Special which) const {
  switch (which) {
    case Special::kThread:
      return lane.number;
    case Special::kNumThreads:
      return shape_.num_threads;
    case Special::kBlock:
      return number_;
    case Special::kNumBlocks:
      return shape_.num_blocks;
    case Special::kDynamicSharedBytes:
      return shape_.shared_bytes;
  }
  return 0;
}

std::uint64_t Block::address(const Lane& lane, const Operand& operand) const {
  const std::uint64_t base = operand.reg == Operand::kNoRegister ? 0 : value(lane, operand.reg);
  return base + operand.value;
}

void Block::calculate(Lane& lane, const Instruction& one) const {
  Values values{};
  for (std::size_t i = 1; i < one.num_operands; ++i) values[i] = value(lane, one.operands[i]);
  set(lane, one.operands[0].reg, evaluate(one, values));
}

/// A move may take a register of 64 bits apart, or put it together.
void Block::move(Lane& lane, const Instruction& one) const {
  const Operand& to = one.operands[0];
  const Operand& from = one.operands[1];
  const unsigned half = one.type.bits / 2U;
  if (to.kind == Operand::kVector) {
    const std::uint64_t both = value(lane, from);
    set(lane, to.vector[0], low_bits(both, half));
    set(lane, to.vector[1], both >> half);
  } else if (from.kind == Operand::kVector) {
    set(lane, to.reg, value(lane, from.vector[0]) | value(lane, from.vector[1]) << half);
  } else {
    calculate(lane, one);
  }
}

/// Until the lanes of the mask are here. Those of a shuffle have the last five operands: the
/// result, what the lane offers, the bits by which the lanes differ that exchange, 31 (the whole
/// warp) and the mask.
void Block::wait_for_warp(Lane& lane, const Instruction& one) const {
  if (one.op == Op::kShuffle) {
    constexpr std::uint64_t kWholeWarp = 31;
    if (value(lane, one.operands[3]) != kWholeWarp) {
      throw Fault(Hazard::kUndefined, "a shuffle within a part of a warp");
    }
    lane.offered = value(lane, one.operands[1]);
  }
  const Operand& mask = one.operands[one.num_operands - 1U];
  lane.mask = static_cast<std::uint32_t>(value(lane, mask));
  lane.waiting = Waiting::kWarp;
  lane.waits_at = &one;
}

void Block::load_parameter(Lane& lane, const Instruction& one) const {
  const std::uint32_t bytes = one.type.bytes();
  const std::uint64_t offset = address(lane, one.operands[1]) - kParameterAddress;
  if (offset > parameter_.size() || bytes > parameter_.size() - offset) {
    throw Fault(Hazard::kBounds, "ld.param at offset " + std::to_string(offset) + " of " +
                                     std::to_string(parameter_.size()) + " bytes");
  }
  check_alignment(offset, bytes);
  std::uint64_t loaded = 0;
  std::memcpy(&loaded, parameter_.data() + offset, bytes);
  set(lane, one.operands[0].reg, loaded);
}

void Block::load_global(Lane& lane, const Instruction& one) const {
  const std::uint32_t element = one.type.bytes();
  const std::uint32_t bytes = element * one.num_elements;
  const std::uint64_t from = address(lane, one.operands[1]);
  check_alignment(from, bytes);
  const auto source = memory_.read(from, bytes);
  const Operand& to = one.operands[0];
  for (std::uint32_t i = 0; i < one.num_elements; ++i) {
    std::uint64_t loaded = 0;
    std::memcpy(&loaded, source.data() + std::size_t{i} * element, element);
    set(lane, to.kind == Operand::kVector ? to.vector[i] : to.reg, loaded);
  }
}

void Block::store_global(const Lane& lane, const Instruction& one) const {
  const std::uint32_t element = one.type.bytes();
  const std::uint32_t bytes = element * one.num_elements;
  const std::uint64_t to = address(lane, one.operands[0]);
  check_alignment(to, bytes);
  const Operand& from = one.operands[1];
  std::array<std::uint8_t, kMaxAccessBytes> stored{};
  for (std::uint32_t i = 0; i < one.num_elements; ++i) {
    const std::uint64_t part =
        from.kind == Operand::kVector ? value(lane, from.vector[i]) : value(lane, from);
    std::memcpy(stored.data() + std::size_t{i} * element, &part, element);
  }
  memory_.write(to, std::span(stored).first(bytes));
}

void Block::add_global(const Lane& lane, const Instruction& one) const {
  const std::uint64_t to = address(lane, one.operands[0]);
  check_alignment(to, one.type.bytes());
  memory_.add(to, value(lane, one.operands[1]));
}

}  // namespace kvferry::ptx
