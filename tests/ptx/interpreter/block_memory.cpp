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
    case Op::kWarpBarrier:
      lane.mask = static_cast<std::uint32_t>(value(lane, one.operands[0]));
      lane.waiting = Waiting::kWarp;
      lane.waits_at = &one;
      return;
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

}  // namespace kvferry::ptx
