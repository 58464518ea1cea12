// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/instruction.hpp"

#include <array>
#include <cstdint>

namespace kvferry::ptx {

/// The values of an instruction's operands; that of the result's operand is not looked at.
using Values = std::array<std::uint64_t, Instruction::kMaxOperands>;

/// The low `bits` of `value`.
[[nodiscard]] constexpr std::uint64_t low_bits(std::uint64_t value, unsigned bits) {
  return bits >= 64 ? value : value & ((std::uint64_t{1} << bits) - 1);
}

/// The result of an instruction that has no effect but its result: kMove to kToGlobal. Bits above
/// the result's type are 0. Throws Fault (kUndefined) at a division by zero.
[[nodiscard]] std::uint64_t evaluate(const Instruction& instruction, const Values& values);

}  // namespace kvferry::ptx
