// SPDX-License-Identifier: Apache-2.0
#include "gcn/wave.hpp"
#include "interpreter/fault.hpp"

#include <bit>
#include <cmath>
#include <limits>

namespace kvferry::gcn {

void Wave::step(const Instruction& one) {
  switch (one.opcode->form) {
    case Form::kBranch:
      if (one.opcode->value(mask(kExec), mask(kVcc), scc_ ? 1 : 0) != 0) next_ = one.target;
      return;
    case Form::kWait:
      return wait(one);
    case Form::kNothing:
      return;
    case Form::kEnd:
      is_done_ = true;
      return;
    case Form::kScalarLoad:
      return load_scalars(one);
    case Form::kLoad:
      return load(one);
    case Form::kStore:
      return store(one);
    case Form::kAtomicAdd:
      return add(one);
    case Form::kPermute:
      return permute(one);
    case Form::kScalar:
    case Form::kSaveExec:
      return step_scalar(one);
    default:
      return step_vector(one);
  }
}

void Wave::step_scalar(const Instruction& one) {
  const Opcode& opcode = *one.opcode;
  if (opcode.form == Form::kSaveExec) {
    const std::uint64_t before = mask(kExec);
    const std::uint64_t after = opcode.value(scalar(one.operands[1], 2), before, 0);
    write_scalar(one.operands[0], 2, before);
    write_mask(kExec, after);
    scc_ = after != 0;
    return;
  }
  const std::size_t first = opcode.result_size == 0 ? 0 : 1;
  const std::uint64_t a = scalar(one.operands[first], opcode.source_sizes[0]);
  const bool has_second = one.num_operands > first + 1;
  const std::uint64_t b = has_second ? scalar(one.operands[first + 1], opcode.source_sizes[1]) : 0;
  const std::uint64_t c = scc_ ? 1 : 0;
  if (opcode.value != nullptr) {
    write_scalar(one.operands[0], opcode.result_size, opcode.value(a, b, c));
  }
  if (opcode.scc != nullptr) scc_ = opcode.scc(a, b, c) != 0;
}

void Wave::step_vector(const Instruction& one) {
  const Form form = one.opcode->form;
  if (form == Form::kReadFirstLane) {
    const std::uint64_t lanes = mask(kExec);
    const auto lane = static_cast<std::uint32_t>(lanes == 0 ? 0 : std::countr_zero(lanes));
    return write_scalar(one.operands[0], 1, lane_value(one.operands[1], 1, lane));
  }
  std::uint64_t carries = 0;
  for (std::uint32_t lane = 0; lane < kNumLanes; ++lane) {
    if (is_active(lane)) step_lane(one, lane, carries);
  }
  if (form == Form::kVectorCompare) write_mask(one.operands[0].reg, carries);
  if (form == Form::kVectorCarry || form == Form::kVectorMultiply) {
    write_mask(one.operands[1].reg, carries);
  }
}

void Wave::step_lane(const Instruction& one, std::uint32_t lane, std::uint64_t& carries) {
  const Opcode& opcode = *one.opcode;
  const auto source = [&](std::size_t operand, std::size_t which) {
    return operand < one.num_operands
               ? lane_value(one.operands[operand], opcode.source_sizes[which], lane)
               : 0;
  };
  const auto carry_in = [&](const Operand& operand) { return scalar(operand, 2) >> lane & 1U; };
  const auto write = [&](std::uint64_t value) {
    write_lane(one.operands[0], opcode.result_size, lane, value);
  };
  switch (opcode.form) {
    case Form::kVector:
      return write(opcode.value(source(1, 0), source(2, 1), source(3, 2)));
    case Form::kVectorCompare:
      carries |= opcode.value(source(1, 0), source(2, 1), 0) << lane;
      return;
    case Form::kVectorCarry: {
      const std::uint64_t before = one.num_operands > 4 ? carry_in(one.operands[4]) : 0;
      const std::uint64_t result = opcode.value(source(2, 0), source(3, 1), before);
      carries |= (result >> 32U & 1U) << lane;
      return write(result);
    }
    case Form::kVectorMultiply: {
      const std::uint64_t product = source(2, 0) * source(3, 1);
      const std::uint64_t result = product + source(4, 2);
      carries |= std::uint64_t{result < product ? 1U : 0U} << lane;
      return write(result);
    }
    case Form::kVectorSelect:
      return write(carry_in(one.operands[3]) != 0 ? source(2, 1) : source(1, 0));
    case Form::kVectorPacked:
      return write(packed(one, lane));
    case Form::kReciprocal:
      return write(reciprocal(static_cast<std::uint32_t>(source(1, 0))));
    default:
      throw ptx::Fault(ptx::Hazard::kUndefined, "not an instruction of lanes");
  }
}

std::uint64_t Wave::packed(const Instruction& one, std::uint32_t lane) const {
  const auto half = [&](std::size_t i, std::uint8_t from_high) -> std::uint64_t {
    if (i + 1 >= one.num_operands) return 0;
    const std::uint64_t both = lane_value(one.operands[i + 1], 2, lane);
    return (from_high >> i & 1U) != 0 ? both >> 32U : static_cast<std::uint32_t>(both);
  };
  if (one.opcode->value == nullptr) {
    return half(0, one.low_from_high) | half(1, one.low_from_high) << 32U;
  }
  const auto result = [&](std::uint8_t from_high) {
    return one.opcode->value(half(0, from_high), half(1, from_high), half(2, from_high));
  };
  return result(one.low_from_high) | result(one.high_from_high) << 32U;
}

std::uint32_t Wave::reciprocal(std::uint32_t value) {
  // Less than one unit in the last place off, as the ISA promises: either neighbour of the truth.
  const double truth = 1.0 / std::bit_cast<float>(value);
  const auto nearest = static_cast<float>(truth);
  const float beyond = nearest < truth ? std::numeric_limits<float>::infinity() : 0.0F;
  const bool is_exact = static_cast<double>(nearest) == truth;
  const bool is_nearest = is_exact || random_() % 2 == 0;
  return std::bit_cast<std::uint32_t>(is_nearest ? nearest : std::nextafter(nearest, beyond));
}

}  // namespace kvferry::gcn
