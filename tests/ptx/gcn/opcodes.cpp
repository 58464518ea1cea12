// SPDX-License-Identifier: Apache-2.0
#include "gcn/opcodes.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvferry::gcn {
namespace {

using U64 = std::uint64_t;
using U32 = std::uint32_t;

constexpr U32 u32(U64 value) { return static_cast<U32>(value); }
constexpr std::int64_t s32(U64 value) { return static_cast<std::int32_t>(u32(value)); }
float f32(U64 value) { return std::bit_cast<float>(u32(value)); }
U64 bits(float value) { return std::bit_cast<U32>(value); }

constexpr U64 overflows(std::int64_t result) {
  return result != static_cast<std::int32_t>(result) ? 1 : 0;
}

/// Truncates, and keeps to what fits.
U64 to_unsigned(float value) {
  if (!(value > 0)) return 0;
  return value >= 4294967296.0F ? 0xffff'ffffU : static_cast<U32>(value);
}

/// The c bits of `a` from bit b on, sign-extended.
U64 signed_field(U64 a, U64 b, U64 c) {
  const U64 size = c % 32;
  if (size == 0) return 0;
  const U64 field = u32(a) >> (b % 32) & ((U64{1} << size) - 1);
  return field >> (size - 1) != 0 ? field | ~U64{0} << size : field;
}

// Operations that several rows share.
constexpr Function kFirst = [](U64 a, U64, U64) { return a; };
constexpr Function kAdd = [](U64 a, U64 b, U64) { return a + b; };
constexpr Function kSubtract = [](U64 a, U64 b, U64) { return a - b; };
constexpr Function kMultiply = [](U64 a, U64 b, U64) { return a * b; };
constexpr Function kMultiplyHigh = [](U64 a, U64 b, U64) { return U64{u32(a)} * u32(b) >> 32U; };
constexpr Function kAnd = [](U64 a, U64 b, U64) { return a & b; };
constexpr Function kAndNot = [](U64 a, U64 b, U64) { return a & ~b; };
constexpr Function kOr = [](U64 a, U64 b, U64) { return a | b; };
constexpr Function kXor = [](U64 a, U64 b, U64) { return a ^ b; };
constexpr Function kSelect = [](U64 a, U64 b, U64 c) { return c != 0 ? a : b; };
constexpr Function kEqual = [](U64 a, U64 b, U64) -> U64 { return a == b ? 1 : 0; };
constexpr Function kNotEqual = [](U64 a, U64 b, U64) -> U64 { return a != b ? 1 : 0; };
constexpr Function kLess = [](U64 a, U64 b, U64) -> U64 { return a < b ? 1 : 0; };
constexpr Function kLessEqual = [](U64 a, U64 b, U64) -> U64 { return a <= b ? 1 : 0; };
constexpr Function kGreater = [](U64 a, U64 b, U64) -> U64 { return a > b ? 1 : 0; };
constexpr Function kGreaterEqual = [](U64 a, U64 b, U64) -> U64 { return a >= b ? 1 : 0; };
constexpr Function kLessSigned = [](U64 a, U64 b, U64) -> U64 { return s32(a) < s32(b) ? 1 : 0; };
constexpr Function kAndNonZero = [](U64 a, U64 b, U64) -> U64 { return (a & b) != 0 ? 1 : 0; };
constexpr Function kOrNonZero = [](U64 a, U64 b, U64) -> U64 { return (a | b) != 0 ? 1 : 0; };
constexpr Function kAndNotNonZero = [](U64 a, U64 b, U64) -> U64 { return (a & ~b) != 0 ? 1 : 0; };
constexpr Function kShiftRight32 = [](U64 a, U64 b, U64) { return a >> (b % 32); };
constexpr Function kShiftRight64 = [](U64 a, U64 b, U64) { return a >> (b % 64); };
constexpr Function kShiftLeft64 = [](U64 a, U64 b, U64) { return a << (b % 64); };

constexpr auto kOpcodes = std::to_array<Opcode>({
    {"s_mov_b32", Form::kScalar, 2, 1, {1}, kFirst},
    {"s_mov_b64", Form::kScalar, 2, 2, {2}, kFirst},
    {"s_movk_i32",
     Form::kScalar,
     2,
     1,
     {1},
     [](U64 a, U64, U64) { return static_cast<U64>(static_cast<std::int16_t>(a)); }},
    {"s_add_u32",
     Form::kScalar,
     3,
     1,
     {1, 1},
     kAdd,
     [](U64 a, U64 b, U64) { return (a + b) >> 32U; }},
    {"s_addc_u32",
     Form::kScalar,
     3,
     1,
     {1, 1},
     [](U64 a, U64 b, U64 c) { return a + b + c; },
     [](U64 a, U64 b, U64 c) { return (a + b + c) >> 32U; }},
    {"s_add_i32",
     Form::kScalar,
     3,
     1,
     {1, 1},
     kAdd,
     [](U64 a, U64 b, U64) { return overflows(s32(a) + s32(b)); }},
    {"s_sub_i32",
     Form::kScalar,
     3,
     1,
     {1, 1},
     kSubtract,
     [](U64 a, U64 b, U64) { return overflows(s32(a) - s32(b)); }},
    {"s_mul_i32", Form::kScalar, 3, 1, {1, 1}, kMultiply},
    {"s_mul_hi_u32", Form::kScalar, 3, 1, {1, 1}, kMultiplyHigh},
    {"s_min_u32",
     Form::kScalar,
     3,
     1,
     {1, 1},
     [](U64 a, U64 b, U64) { return std::min(a, b); },
     kLess},
    {"s_and_b32", Form::kScalar, 3, 1, {1, 1}, kAnd, kAndNonZero},
    {"s_and_b64", Form::kScalar, 3, 2, {2, 2}, kAnd, kAndNonZero},
    {"s_andn2_b64", Form::kScalar, 3, 2, {2, 2}, kAndNot, kAndNotNonZero},
    {"s_or_b64", Form::kScalar, 3, 2, {2, 2}, kOr, kOrNonZero},
    {"s_xor_b64", Form::kScalar, 3, 2, {2, 2}, kXor, kNotEqual},
    {"s_lshr_b32",
     Form::kScalar,
     3,
     1,
     {1, 1},
     kShiftRight32,
     [](U64 a, U64 b, U64) -> U64 { return a >> (b % 32) != 0 ? 1 : 0; }},
    {"s_lshr_b64",
     Form::kScalar,
     3,
     2,
     {2, 1},
     kShiftRight64,
     [](U64 a, U64 b, U64) -> U64 { return a >> (b % 64) != 0 ? 1 : 0; }},
    {"s_lshl_b64",
     Form::kScalar,
     3,
     2,
     {2, 1},
     kShiftLeft64,
     [](U64 a, U64 b, U64) -> U64 { return a << (b % 64) != 0 ? 1 : 0; }},
    {"s_cselect_b32", Form::kScalar, 3, 1, {1, 1}, kSelect},
    {"s_cselect_b64", Form::kScalar, 3, 2, {2, 2}, kSelect},
    {"s_cmp_eq_u32", Form::kScalar, 2, 0, {1, 1}, nullptr, kEqual},
    {"s_cmp_lg_u32", Form::kScalar, 2, 0, {1, 1}, nullptr, kNotEqual},
    {"s_cmp_lg_u64", Form::kScalar, 2, 0, {2, 2}, nullptr, kNotEqual},
    {"s_cmp_gt_u32", Form::kScalar, 2, 0, {1, 1}, nullptr, kGreater},
    {"s_cmp_ge_u32", Form::kScalar, 2, 0, {1, 1}, nullptr, kGreaterEqual},
    {"s_and_saveexec_b64", Form::kSaveExec, 2, 2, {2}, kAnd},
    {"s_or_saveexec_b64", Form::kSaveExec, 2, 2, {2}, kOr},
    {"s_andn2_saveexec_b64", Form::kSaveExec, 2, 2, {2}, kAndNot},
    {"s_branch", Form::kBranch, 1, 0, {}, [](U64, U64, U64) -> U64 { return 1; }},
    {"s_cbranch_execz",
     Form::kBranch,
     1,
     0,
     {},
     [](U64 exec, U64, U64) -> U64 { return exec == 0 ? 1 : 0; }},
    {"s_cbranch_execnz", Form::kBranch, 1, 0, {}, kFirst},
    {"s_cbranch_vccnz", Form::kBranch, 1, 0, {}, [](U64, U64 vcc, U64) { return vcc; }},
    {"s_cbranch_scc1", Form::kBranch, 1, 0, {}, [](U64, U64, U64 scc) { return scc; }},
    {"s_load_dword", Form::kScalarLoad, 3, 1, {2, 1}, nullptr, nullptr, 4},
    {"s_load_dwordx2", Form::kScalarLoad, 3, 2, {2, 1}, nullptr, nullptr, 8},
    {"s_load_dwordx4", Form::kScalarLoad, 3, 4, {2, 1}, nullptr, nullptr, 16},
    {"s_load_dwordx8", Form::kScalarLoad, 3, 8, {2, 1}, nullptr, nullptr, 32},
    {"s_waitcnt", Form::kWait, 0},
    {"s_nop", Form::kNothing, 1},
    {"s_endpgm", Form::kEnd, 0},

    {"v_mov_b32", Form::kVector, 2, 1, {1}, kFirst},
    {"v_mov_b64", Form::kVector, 2, 2, {2}, kFirst},
    {"v_add_u32", Form::kVector, 3, 1, {1, 1}, kAdd},
    {"v_add3_u32", Form::kVector, 4, 1, {1, 1, 1}, [](U64 a, U64 b, U64 c) { return a + b + c; }},
    {"v_sub_u32", Form::kVector, 3, 1, {1, 1}, kSubtract},
    {"v_subrev_u32", Form::kVector, 3, 1, {1, 1}, [](U64 a, U64 b, U64) { return b - a; }},
    // The upper half of the result is 0 on this generation.
    {"v_sub_u16", Form::kVector, 3, 1, {1, 1}, [](U64 a, U64 b, U64) { return (a - b) & 0xffffU; }},
    {"v_mul_lo_u16",
     Form::kVector,
     3,
     1,
     {1, 1},
     [](U64 a, U64 b, U64) { return (a * b) & 0xffffU; }},
    {"v_mul_lo_u32", Form::kVector, 3, 1, {1, 1}, kMultiply},
    {"v_mul_hi_u32", Form::kVector, 3, 1, {1, 1}, kMultiplyHigh},
    {"v_and_b32", Form::kVector, 3, 1, {1, 1}, kAnd},
    {"v_or_b32", Form::kVector, 3, 1, {1, 1}, kOr},
    {"v_or3_b32", Form::kVector, 4, 1, {1, 1, 1}, [](U64 a, U64 b, U64 c) { return a | b | c; }},
    {"v_xor_b32", Form::kVector, 3, 1, {1, 1}, kXor},
    {"v_lshrrev_b32", Form::kVector, 3, 1, {1, 1}, [](U64 a, U64 b, U64) { return b >> (a % 32); }},
    {"v_lshlrev_b32", Form::kVector, 3, 1, {1, 1}, [](U64 a, U64 b, U64) { return b << (a % 32); }},
    {"v_lshrrev_b64", Form::kVector, 3, 2, {1, 2}, [](U64 a, U64 b, U64) { return b >> (a % 64); }},
    {"v_lshlrev_b64", Form::kVector, 3, 2, {1, 2}, [](U64 a, U64 b, U64) { return b << (a % 64); }},
    {"v_lshl_add_u64",
     Form::kVector,
     4,
     2,
     {2, 1, 2},
     [](U64 a, U64 b, U64 c) { return (a << (b % 64)) + c; }},
    {"v_bfe_u32",
     Form::kVector,
     4,
     1,
     {1, 1, 1},
     [](U64 a, U64 b, U64 c) { return (a >> (b % 32)) & ((U64{1} << (c % 32)) - 1); }},
    {"v_bfe_i32", Form::kVector, 4, 1, {1, 1, 1}, signed_field},
    {"v_alignbit_b32",
     Form::kVector,
     4,
     1,
     {1, 1, 1},
     [](U64 a, U64 b, U64 c) { return (a << 32U | b) >> (c % 32); }},
    {"v_cvt_f32_u32",
     Form::kVector,
     2,
     1,
     {1},
     [](U64 a, U64, U64) { return bits(static_cast<float>(u32(a))); }},
    {"v_cvt_u32_f32",
     Form::kVector,
     2,
     1,
     {1},
     [](U64 a, U64, U64) { return to_unsigned(f32(a)); }},
    {"v_add_f32",
     Form::kVector,
     3,
     1,
     {1, 1},
     [](U64 a, U64 b, U64) { return bits(f32(a) + f32(b)); }},
    {"v_mul_f32",
     Form::kVector,
     3,
     1,
     {1, 1},
     [](U64 a, U64 b, U64) { return bits(f32(a) * f32(b)); }},
    {"v_pk_fma_f32",
     Form::kVectorPacked,
     4,
     2,
     {2, 2, 2},
     [](U64 a, U64 b, U64 c) { return bits(std::fma(f32(a), f32(b), f32(c))); }},
    {"v_pk_mul_f32",
     Form::kVectorPacked,
     3,
     2,
     {2, 2},
     [](U64 a, U64 b, U64) { return bits(f32(a) * f32(b)); }},
    // The low half of the first source, the high half of the second: op_sel says which is which.
    {"v_pk_mov_b32", Form::kVectorPacked, 3, 2, {2, 2}, nullptr},
    {"v_rcp_iflag_f32", Form::kReciprocal, 2, 1, {1}},
    {"v_readfirstlane_b32", Form::kReadFirstLane, 2, 1, {1}},
    {"v_cndmask_b32", Form::kVectorSelect, 4, 1, {1, 1, 2}},
    {"v_mad_u64_u32", Form::kVectorMultiply, 5, 2, {1, 1, 2}},
    {"v_add_co_u32", Form::kVectorCarry, 4, 1, {1, 1}, kAdd},
    {"v_addc_co_u32",
     Form::kVectorCarry,
     5,
     1,
     {1, 1},
     [](U64 a, U64 b, U64 c) { return a + b + c; }},
    {"v_sub_co_u32", Form::kVectorCarry, 4, 1, {1, 1}, kSubtract},
    {"v_subb_co_u32",
     Form::kVectorCarry,
     5,
     1,
     {1, 1},
     [](U64 a, U64 b, U64 c) { return a - b - c; }},
    {"v_cmp_eq_u32", Form::kVectorCompare, 3, 2, {1, 1}, kEqual},
    {"v_cmp_ne_u32", Form::kVectorCompare, 3, 2, {1, 1}, kNotEqual},
    {"v_cmp_lt_u32", Form::kVectorCompare, 3, 2, {1, 1}, kLess},
    {"v_cmp_le_u32", Form::kVectorCompare, 3, 2, {1, 1}, kLessEqual},
    {"v_cmp_gt_u32", Form::kVectorCompare, 3, 2, {1, 1}, kGreater},
    {"v_cmp_ge_u32", Form::kVectorCompare, 3, 2, {1, 1}, kGreaterEqual},
    {"v_cmp_lt_i32", Form::kVectorCompare, 3, 2, {1, 1}, kLessSigned},
    {"v_cmp_eq_u64", Form::kVectorCompare, 3, 2, {2, 2}, kEqual},
    {"v_cmp_ne_u64", Form::kVectorCompare, 3, 2, {2, 2}, kNotEqual},
    {"v_cmp_lt_u64", Form::kVectorCompare, 3, 2, {2, 2}, kLess},
    {"v_cmp_le_u64", Form::kVectorCompare, 3, 2, {2, 2}, kLessEqual},
    {"v_cmp_gt_u64", Form::kVectorCompare, 3, 2, {2, 2}, kGreater},
    {"v_cmp_ge_u64", Form::kVectorCompare, 3, 2, {2, 2}, kGreaterEqual},

    {"global_load_ubyte", Form::kLoad, 2, 1, {2}, nullptr, nullptr, 1},
    {"global_load_ushort", Form::kLoad, 2, 1, {2}, nullptr, nullptr, 2},
    {"global_load_dword", Form::kLoad, 2, 1, {2}, nullptr, nullptr, 4},
    {"global_load_dwordx2", Form::kLoad, 2, 2, {2}, nullptr, nullptr, 8},
    {"global_load_dwordx4", Form::kLoad, 2, 4, {2}, nullptr, nullptr, 16},
    {"global_store_byte", Form::kStore, 2, 0, {2, 1}, nullptr, nullptr, 1},
    {"global_store_short", Form::kStore, 2, 0, {2, 1}, nullptr, nullptr, 2},
    {"global_store_dword", Form::kStore, 2, 0, {2, 1}, nullptr, nullptr, 4},
    {"global_store_dwordx2", Form::kStore, 2, 0, {2, 2}, nullptr, nullptr, 8},
    {"global_store_dwordx4", Form::kStore, 2, 0, {2, 4}, nullptr, nullptr, 16},
    {"global_atomic_add_x2", Form::kAtomicAdd, 2, 0, {2, 2}, nullptr, nullptr, 8},
    {"ds_bpermute_b32", Form::kPermute, 3, 1, {1, 1}},
    {"flat_load_dwordx4", Form::kLoad, 2, 4, {2}, nullptr, nullptr, 16},
    {"flat_store_dword", Form::kStore, 2, 0, {2, 1}, nullptr, nullptr, 4},
    {"flat_store_dwordx4", Form::kStore, 2, 0, {2, 4}, nullptr, nullptr, 16},
});

}  // namespace

std::span<const Opcode> opcodes() { return kOpcodes; }

const Opcode* find_opcode(std::string_view text) {
  for (const std::string_view encoding : {"_e32", "_e64"}) {
    if (text.ends_with(encoding)) text.remove_suffix(encoding.size());
  }
  const auto found = std::find_if(kOpcodes.begin(), kOpcodes.end(),
                                  [&](const Opcode& one) { return one.name == text; });
  return found == kOpcodes.end() ? nullptr : &*found;
}

}  // namespace kvferry::gcn
