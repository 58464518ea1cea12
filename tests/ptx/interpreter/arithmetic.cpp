// SPDX-License-Identifier: Apache-2.0
#include "interpreter/arithmetic.hpp"

#include "interpreter/fault.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvferry::ptx {
namespace {

std::int64_t signed_value(std::uint64_t value, unsigned bits) {
  const unsigned unused = 64 - bits;
  return static_cast<std::int64_t>(value << unused) >> unused;
}

float float_of(std::uint64_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value));
}
std::uint64_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

std::uint64_t evaluate_float(const Instruction& one, const Values& v) {
  switch (one.op) {
    case Op::kAdd:
      return bits_of(float_of(v[1]) + float_of(v[2]));
    case Op::kMultiply:
      return bits_of(float_of(v[1]) * float_of(v[2]));
    default:  // kMultiplyAdd; mnemonics.cpp lets no other pass
      return bits_of(std::fma(float_of(v[1]), float_of(v[2]), float_of(v[3])));
  }
}

template <typename Number>
bool compare(Comparison comparison, Number a, Number b) {
  switch (comparison) {
    case Comparison::kEqual:
      return a == b;
    case Comparison::kNotEqual:
      return a != b;
    case Comparison::kLess:
      return a < b;
    case Comparison::kLessEqual:
      return a <= b;
    case Comparison::kGreater:
      return a > b;
    case Comparison::kGreaterEqual:
      return a >= b;
  }
  return false;
}

bool compare_typed(Comparison comparison, const Type& type, std::uint64_t a, std::uint64_t b) {
  if (type.kind == Type::kSigned) {
    return compare(comparison, signed_value(a, type.bits), signed_value(b, type.bits));
  }
  return compare(comparison, low_bits(a, type.bits), low_bits(b, type.bits));
}

std::uint64_t shift_right(const Type& type, std::uint64_t value, std::uint64_t count) {
  if (type.kind == Type::kSigned) {
    const std::uint64_t most = type.bits - 1U;
    return static_cast<std::uint64_t>(signed_value(value, type.bits) >> std::min(count, most));
  }
  return count >= type.bits ? 0 : low_bits(value, type.bits) >> count;
}

std::uint64_t convert(const Instruction& one, std::uint64_t value) {
  const std::uint64_t source = one.from.kind == Type::kSigned
                                   ? static_cast<std::uint64_t>(signed_value(value, one.from.bits))
                                   : low_bits(value, one.from.bits);
  return one.type.kind == Type::kFloat ? bits_of(static_cast<float>(source)) : source;
}

std::uint64_t divide(std::uint64_t dividend, std::uint64_t divisor) {
  if (divisor == 0) throw Fault(Hazard::kUndefined, "a division by zero");
  return dividend / divisor;
}

std::uint64_t multiply_high(const Type& type, std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{low_bits(a, type.bits)} * low_bits(b, type.bits)) >>
                                    type.bits);
}

std::uint64_t evaluate_integer(const Instruction& one, const Values& v) {
  const unsigned bits = one.type.bits;
  switch (one.op) {
    case Op::kMove:
    case Op::kToGlobal:
      return v[1];
    case Op::kAdd:
      return v[1] + v[2];
    case Op::kSubtract:
      return v[1] - v[2];
    case Op::kMultiply:
      return v[1] * v[2];
    case Op::kMultiplyHigh:
      return multiply_high(one.type, v[1], v[2]);
    case Op::kMultiplyWide:
      return low_bits(v[1], bits) * low_bits(v[2], bits);
    case Op::kMultiplyAdd:
      return v[1] * v[2] + v[3];
    case Op::kDivide:
      return divide(low_bits(v[1], bits), low_bits(v[2], bits));
    case Op::kMinimum:
      return compare_typed(Comparison::kLess, one.type, v[1], v[2]) ? v[1] : v[2];
    case Op::kMaximum:
      return compare_typed(Comparison::kLess, one.type, v[1], v[2]) ? v[2] : v[1];
    case Op::kAnd:
      return v[1] & v[2];
    case Op::kOr:
      return v[1] | v[2];
    case Op::kXor:
      return v[1] ^ v[2];
    case Op::kShiftLeft:
      return low_bits(v[2], 32) >= bits ? 0 : v[1] << low_bits(v[2], 32);
    case Op::kShiftRight:
      return shift_right(one.type, v[1], low_bits(v[2], 32));
    case Op::kFunnelShiftLeft: {  // d, low, high, count
      const std::uint64_t both = low_bits(v[2], 32) << 32U | low_bits(v[1], 32);
      return (both << (v[3] % 32)) >> 32U;
    }
    case Op::kNegate:
      return 0 - v[1];
    case Op::kSelect:
      return v[3] != 0 ? v[1] : v[2];
    case Op::kCompare:
      return compare_typed(one.comparison, one.type, v[1], v[2]) ? 1 : 0;
    case Op::kConvert:
      return convert(one, v[1]);
    default:
      throw Fault(Hazard::kUndefined, "not an instruction of arithmetic: " + one.text);
  }
}

}  // namespace

std::uint64_t evaluate(const Instruction& instruction, const Values& values) {
  if (instruction.type.kind == Type::kFloat && instruction.op != Op::kConvert) {
    return evaluate_float(instruction, values);
  }
  // A wide product has twice the bits of its factors, and all of them.
  const bool is_wide = instruction.op == Op::kMultiplyWide;
  const unsigned bits = instruction.type.bits * (is_wide ? 2U : 1U);
  return low_bits(evaluate_integer(instruction, values), bits);
}

}  // namespace kvferry::ptx
