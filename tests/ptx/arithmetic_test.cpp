// SPDX-License-Identifier: Apache-2.0
#include "interpreter/arithmetic.hpp"

#include "interpreter/fault.hpp"
#include "interpreter/mnemonics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace kvferry::ptx {
namespace {

using Meaning = std::function<std::uint64_t(std::uint64_t, std::uint64_t, std::uint64_t)>;
using U32 = std::uint32_t;
using U64 = std::uint64_t;

U32 u32(U64 value) { return static_cast<U32>(value); }
std::int32_t s32(U64 value) { return static_cast<std::int32_t>(u32(value)); }
std::int64_t s64(U64 value) { return static_cast<std::int64_t>(value); }
float f32(U64 value) { return std::bit_cast<float>(u32(value)); }
U64 bits(float value) { return std::bit_cast<U32>(value); }

/// What PTX ISA says of opcodes, in C++.
struct Opcodes {
  const char* opcode;
  Meaning meaning;
};

const std::vector<Opcodes>& opcodes() {
  static const std::vector<Opcodes> kAll{
      {"mov.u32", [](U64 a, U64, U64) -> U64 { return u32(a); }},
      {"mov.b16", [](U64 a, U64, U64) -> U64 { return a & 0xffffU; }},
      {"add.s32", [](U64 a, U64 b, U64) -> U64 { return u32(u32(a) + u32(b)); }},
      {"add.s64", [](U64 a, U64 b, U64) { return a + b; }},
      {"sub.s32", [](U64 a, U64 b, U64) -> U64 { return u32(u32(a) - u32(b)); }},
      {"mul.lo.s32", [](U64 a, U64 b, U64) -> U64 { return u32(u32(a) * u32(b)); }},
      {"mul.lo.s64", [](U64 a, U64 b, U64) { return a * b; }},
      {"mul.hi.u32", [](U64 a, U64 b, U64) -> U64 { return U64{u32(a)} * u32(b) >> 32U; }},
      {"mul.wide.u32", [](U64 a, U64 b, U64) -> U64 { return U64{u32(a)} * u32(b); }},
      {"mad.lo.s32", [](U64 a, U64 b, U64 c) -> U64 { return u32(u32(a) * u32(b) + u32(c)); }},
      {"mad.lo.s64", [](U64 a, U64 b, U64 c) { return a * b + c; }},
      {"min.u64", [](U64 a, U64 b, U64) { return std::min(a, b); }},
      {"max.u32", [](U64 a, U64 b, U64) -> U64 { return std::max(u32(a), u32(b)); }},
      {"min.s32", [](U64 a, U64 b, U64) -> U64 { return u32(U64(std::min(s32(a), s32(b)))); }},
      {"and.b32", [](U64 a, U64 b, U64) -> U64 { return u32(a & b); }},
      {"or.b64", [](U64 a, U64 b, U64) { return a | b; }},
      {"xor.b32", [](U64 a, U64 b, U64) -> U64 { return u32(a ^ b); }},
      {"neg.s64", [](U64 a, U64, U64) { return ~a + 1; }},
      {"shl.b32", [](U64 a, U64 b, U64) -> U64 { return u32(b) > 31 ? 0 : u32(a) << u32(b); }},
      {"shr.u32", [](U64 a, U64 b, U64) -> U64 { return u32(b) > 31 ? 0 : u32(a) >> u32(b); }},
      {"shr.u64", [](U64 a, U64 b, U64) { return u32(b) > 63 ? 0 : a >> u32(b); }},
      {"shr.s32",
       [](U64 a, U64 b, U64) -> U64 { return u32(U64(s32(a) >> std::min(u32(b), 31U))); }},
      {"shf.l.wrap.b32",
       [](U64 a, U64 b, U64 c) -> U64 {
         const U32 n = u32(c) % 32;
         return n == 0 ? u32(b) : u32(u32(b) << n | u32(a) >> (32 - n));
       }},
      {"setp.lt.u64", [](U64 a, U64 b, U64) -> U64 { return a < b ? 1 : 0; }},
      {"setp.gt.s32", [](U64 a, U64 b, U64) -> U64 { return s32(a) > s32(b) ? 1 : 0; }},
      {"setp.ge.u32", [](U64 a, U64 b, U64) -> U64 { return u32(a) >= u32(b) ? 1 : 0; }},
      {"setp.le.s64", [](U64 a, U64 b, U64) -> U64 { return s64(a) <= s64(b) ? 1 : 0; }},
      {"setp.eq.s32", [](U64 a, U64 b, U64) -> U64 { return u32(a) == u32(b) ? 1 : 0; }},
      {"setp.ne.s64", [](U64 a, U64 b, U64) -> U64 { return a != b ? 1 : 0; }},
      {"selp.b32", [](U64 a, U64 b, U64 c) -> U64 { return u32(c != 0 ? a : b); }},
      {"cvt.u32.u64", [](U64 a, U64, U64) -> U64 { return u32(a); }},
      {"cvt.u64.u32", [](U64 a, U64, U64) -> U64 { return u32(a); }},
      {"cvt.s64.s32", [](U64 a, U64, U64) { return static_cast<U64>(std::int64_t{s32(a)}); }},
      {"cvt.rn.f32.u32", [](U64 a, U64, U64) { return bits(static_cast<float>(u32(a))); }},
      {"add.f32", [](U64 a, U64 b, U64) { return bits(f32(a) + f32(b)); }},
      {"mul.f32", [](U64 a, U64 b, U64) { return bits(f32(a) * f32(b)); }},
      {"fma.rn.f32", [](U64 a, U64 b, U64 c) { return bits(std::fma(f32(a), f32(b), f32(c))); }},
      {"cvta.to.global.u64", [](U64 a, U64, U64) { return a; }},
  };
  return kAll;
}

std::uint64_t result_of(const char* opcode, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  const Opcode found = find_opcode(opcode, 1);
  Instruction one;
  one.op = found.mnemonic->op;
  one.comparison = found.mnemonic->comparison;
  one.type = found.type;
  one.from = found.from;
  return evaluate(one, {0, a, b, c});
}

TEST(PtxArithmetic, IsWhatPtxSaysAtTheEdges) {
  constexpr std::array<std::uint64_t, 14> kEdges{
      0,           1,           31,          32,          63,          64,    0x3f80'0000,
      0x7fff'ffff, 0x8000'0000, 0xffff'ffff, 1ULL << 32U, 1ULL << 63U, ~1ULL, ~0ULL};
  const auto is_nan = [](const std::string& opcode, std::uint64_t value) {
    return opcode.ends_with("f32") && std::isnan(f32(value));
  };
  for (const auto& [opcode, meaning] : opcodes()) {
    for (const std::uint64_t a : kEdges) {
      for (const std::uint64_t b : kEdges) {
        for (const std::uint64_t c : kEdges) {
          const std::uint64_t expected = meaning(a, b, c);
          if (is_nan(opcode, expected)) continue;
          ASSERT_EQ(result_of(opcode, a, b, c), expected)
              << opcode << " " << a << " " << b << " " << c;
        }
      }
    }
  }
}

TEST(PtxArithmetic, DividesAndRefusesZero) {
  EXPECT_EQ(result_of("div.u32", 0x1'0000'0007, 2, 0), 3);
  EXPECT_THROW(static_cast<void>(result_of("div.u32", 1, 1ULL << 32U, 0)), Fault);
}

}  // namespace
}  // namespace kvferry::ptx
