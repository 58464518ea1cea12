// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/instruction.hpp"

#include <cstdint>
#include <span>
#include <string_view>

/// Which opcodes the interpreter knows. To add one: a row in mnemonics.cpp, and the case in
/// arithmetic.cpp or a block_*.cpp if the Op is new.
namespace kvferry::ptx {

/// An opcode without the types and the vector size that it ends with.
struct Mnemonic {
  std::string_view name;
  Op op;
  std::uint8_t num_operands;
  /// Type::Kind values that it takes, added; 0: it has no type.
  std::uint8_t kinds;
  /// Types that the opcode ends with.
  std::uint8_t num_types = 1;
  Comparison comparison{};
};

[[nodiscard]] std::span<const Mnemonic> mnemonics();

/// An opcode taken apart: "ld.global.v2.u64" is "ld.global", two elements, u64.
struct Opcode {
  const Mnemonic* mnemonic = nullptr;
  std::uint8_t num_elements = 1;
  Type type;
  Type from;
};

/// Throws UnknownPtx for an opcode, a type or a vector that the interpreter does not know.
[[nodiscard]] Opcode find_opcode(std::string_view text, int line);

}  // namespace kvferry::ptx
