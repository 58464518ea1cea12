// SPDX-License-Identifier: Apache-2.0
#include "gcn/wave.hpp"

#include "interpreter/fault.hpp"

#include <algorithm>

namespace kvferry::gcn {
namespace {

bool overlap(const Operand& a, const Operand& b) {
  return a.kind == b.kind && a.reg < b.reg + b.num_registers && b.reg < a.reg + a.num_registers;
}

}  // namespace

Wave::Wave(const Kernel& kernel, ptx::GlobalMemory& memory, ptx::Random& random)
    : kernel_(kernel), memory_(memory), random_(random), vectors_(kernel.num_vectors) {
  for (std::uint32_t& value : scalars_) value = static_cast<std::uint32_t>(random());
  for (auto& lanes : vectors_) {
    for (std::uint32_t& value : lanes) value = static_cast<std::uint32_t>(random());
  }
}

std::uint64_t Wave::run(std::uint64_t max_instructions) {
  std::uint64_t num_run = 0;
  for (; !is_done_; ++num_run) {
    if (num_run == max_instructions) {
      throw ptx::Fault(ptx::Hazard::kStuck,
                       "no end after " + std::to_string(num_run) + " instructions of a wave");
    }
    if (next_ >= kernel_.code.size()) {
      throw ptx::Fault(ptx::Hazard::kLaunch, "the kernel has no s_endpgm");
    }
    const Instruction& one = kernel_.code[next_++];
    try {
      for (std::size_t i = 0; i < one.num_operands; ++i) check_arrived(one.operands[i]);
      step(one);
    } catch (const ptx::Fault& fault) {
      throw fault.at(kernel_.name + ", line " + std::to_string(one.line) + ": " + one.text);
    }
  }
  return num_run;
}

/// A register that is used, or written, while a load to it is under way.
void Wave::check_arrived(const Operand& operand) const {
  if (operand.kind == Operand::kNone || operand.kind == Operand::kConstant) return;
  for (const auto* loads : {&vector_loads_, &scalar_loads_}) {
    for (const Load& load : *loads) {
      if (!overlap(load.to, operand)) continue;
      throw ptx::Fault(ptx::Hazard::kReadBeforeWrite,
                       "a register is used before s_waitcnt let its load arrive");
    }
  }
}

std::uint64_t Wave::scalar(const Operand& operand, unsigned size) const {
  if (operand.kind == Operand::kConstant) {
    return size == 1 ? static_cast<std::uint32_t>(operand.value) : operand.value;
  }
  if (operand.kind != Operand::kScalar) {
    throw ptx::Fault(ptx::Hazard::kUndefined, "no scalar operand");
  }
  return size == 1 ? scalars_[operand.reg] : mask(operand.reg);
}

std::uint64_t Wave::lane_value(const Operand& operand, unsigned size, std::uint32_t lane) const {
  if (operand.kind != Operand::kVector) return scalar(operand, size);
  const std::uint64_t low = vectors_[operand.reg][lane];
  return size == 1 ? low : low | std::uint64_t{vectors_[operand.reg + 1U][lane]} << 32U;
}

std::uint64_t Wave::mask(std::uint16_t reg) const {
  return scalars_[reg] | std::uint64_t{scalars_[reg + 1U]} << 32U;
}

void Wave::write_mask(std::uint16_t reg, std::uint64_t value) {
  scalars_[reg] = static_cast<std::uint32_t>(value);
  scalars_[reg + 1U] = static_cast<std::uint32_t>(value >> 32U);
}

void Wave::write_scalar(const Operand& operand, unsigned size, std::uint64_t value) {
  if (size == 2) return write_mask(operand.reg, value);
  scalars_[operand.reg] = static_cast<std::uint32_t>(value);
}

void Wave::write_lane(const Operand& operand, unsigned size, std::uint32_t lane,
                      std::uint64_t value) {
  vectors_[operand.reg][lane] = static_cast<std::uint32_t>(value);
  if (size == 2) vectors_[operand.reg + 1U][lane] = static_cast<std::uint32_t>(value >> 32U);
}

}  // namespace kvferry::gcn
