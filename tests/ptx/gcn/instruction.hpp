// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gcn/opcodes.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvferry::gcn {

struct Operand {
  enum Kind : std::uint8_t { kNone, kScalar, kVector, kConstant };

  Kind kind = kNone;
  /// The first register. VCC and EXEC are the scalar registers that the hardware counts them as.
  std::uint16_t reg = 0;
  std::uint16_t num_registers = 0;
  /// A constant: an integer, sign-extended, or the bits of a float.
  std::uint64_t value = 0;
};

inline constexpr std::uint16_t kVcc = 106;
inline constexpr std::uint16_t kExec = 126;
inline constexpr std::size_t kNumScalars = 128;

/// One line of the assembly.
struct Instruction {
  const Opcode* opcode = nullptr;
  std::array<Operand, 5> operands;
  std::uint8_t num_operands = 0;
  /// Of an access: what is added to its address.
  std::int64_t offset = 0;
  /// Of a packed instruction, a bit per source: which half the low, the high half of the result is
  /// made of (op_sel, op_sel_hi).
  std::uint8_t low_from_high = 0;
  std::uint8_t high_from_high = 0xff;
  /// Of s_waitcnt: how many may be left; many if it does not say.
  std::uint32_t max_vector_left = UINT32_MAX;
  std::uint32_t max_scalar_left = UINT32_MAX;
  /// Of a branch: the index of the instruction to go to.
  std::size_t target = 0;
  /// In the assembly file, from 1.
  int line = 0;
  std::string text;
};

/// One kernel as its assembly says it.
struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  std::size_t num_vectors = 0;
  std::uint32_t parameter_bytes = 0;
  /// The scalar registers that hold, at the start, the addresses of the dispatch packet and of the
  /// parameter, and the number of the block.
  std::uint16_t dispatch_register = 0;
  std::uint16_t parameter_register = 0;
  std::uint16_t block_register = 0;
};

}  // namespace kvferry::gcn
