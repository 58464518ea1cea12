// SPDX-License-Identifier: Apache-2.0
#include "interpreter/mnemonics.hpp"

#include "interpreter/fault.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>

namespace kvferry::ptx {
namespace {

constexpr std::uint8_t kInteger = Type::kUnsigned | Type::kSigned;
constexpr std::uint8_t kAnyButPredicate = kInteger | Type::kBits | Type::kFloat;

constexpr auto kMnemonics = std::to_array<Mnemonic>({
    {"mov", Op::kMove, 2, kInteger | Type::kBits},
    {"add", Op::kAdd, 3, kInteger | Type::kFloat},
    {"sub", Op::kSubtract, 3, kInteger},
    {"mul", Op::kMultiply, 3, Type::kFloat},
    {"mul.lo", Op::kMultiply, 3, kInteger},
    {"mul.hi", Op::kMultiplyHigh, 3, Type::kUnsigned},
    {"mul.wide", Op::kMultiplyWide, 3, Type::kUnsigned},
    {"mad.lo", Op::kMultiplyAdd, 4, kInteger},
    {"fma.rn", Op::kMultiplyAdd, 4, Type::kFloat},
    {"div", Op::kDivide, 3, Type::kUnsigned},
    {"min", Op::kMinimum, 3, kInteger},
    {"max", Op::kMaximum, 3, kInteger},
    {"and", Op::kAnd, 3, Type::kBits | Type::kPredicate},
    {"or", Op::kOr, 3, Type::kBits | Type::kPredicate},
    {"xor", Op::kXor, 3, Type::kBits | Type::kPredicate},
    {"shl", Op::kShiftLeft, 3, Type::kBits},
    {"shr", Op::kShiftRight, 3, kInteger},
    {"shf.l.wrap", Op::kFunnelShiftLeft, 4, Type::kBits},
    {"neg", Op::kNegate, 2, Type::kSigned},
    {"selp", Op::kSelect, 4, kInteger | Type::kBits},
    {"setp.eq", Op::kCompare, 3, kInteger, 1, Comparison::kEqual},
    {"setp.ne", Op::kCompare, 3, kInteger, 1, Comparison::kNotEqual},
    {"setp.lt", Op::kCompare, 3, kInteger, 1, Comparison::kLess},
    {"setp.le", Op::kCompare, 3, kInteger, 1, Comparison::kLessEqual},
    {"setp.gt", Op::kCompare, 3, kInteger, 1, Comparison::kGreater},
    {"setp.ge", Op::kCompare, 3, kInteger, 1, Comparison::kGreaterEqual},
    {"cvt", Op::kConvert, 2, kInteger, 2},
    {"cvt.rn", Op::kConvert, 2, Type::kUnsigned | Type::kFloat, 2},
    {"cvta.to.global", Op::kToGlobal, 2, Type::kUnsigned},
    {"bra", Op::kBranch, 1, 0, 0},
    {"bra.uni", Op::kBranch, 1, 0, 0},
    {"ret", Op::kReturn, 0, 0, 0},
    {"ld.param", Op::kLoadParameter, 2, Type::kUnsigned | Type::kBits},
    {"ld.global", Op::kLoadGlobal, 2, Type::kUnsigned | Type::kBits | Type::kFloat},
    {"ld.global.nc.L1::no_allocate", Op::kLoadGlobal, 2, Type::kUnsigned},
    {"st.global", Op::kStoreGlobal, 2, kAnyButPredicate},
    {"st.global.cs", Op::kStoreGlobal, 2, kAnyButPredicate},
    {"red.global.add", Op::kAddGlobal, 2, Type::kUnsigned},
    {"shfl.sync.bfly", Op::kShuffle, 5, Type::kBits},
    {"bar.warp.sync", Op::kWarpBarrier, 1, 0, 0},
    {"mbarrier.init.shared::cta", Op::kBarrierInit, 2, Type::kBits},
    {"mbarrier.arrive.expect_tx.shared::cta", Op::kBarrierExpect, 3, Type::kBits},
    {"mbarrier.try_wait.parity.shared::cta", Op::kBarrierWait, 3, Type::kBits},
    {"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint",
     Op::kBulkLoad, 5, 0, 0},
    {"cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint", Op::kBulkStore, 4, 0, 0},
    {"cp.async.bulk.commit_group", Op::kBulkCommit, 0, 0, 0},
    {"cp.async.bulk.wait_group.read", Op::kBulkWaitRead, 1, 0, 0},
    {"cp.async.bulk.wait_group", Op::kBulkWait, 1, 0, 0},
    {"fence.mbarrier_init.release.cluster", Op::kFence, 0, 0, 0},
    {"fence.proxy.async.shared::cta", Op::kFence, 0, 0, 0},
    {"createpolicy.fractional.L2::evict_first", Op::kPolicy, 2, Type::kBits},
});

std::optional<Type> type_of(std::string_view text) {
  if (text == "pred") return Type{Type::kPredicate, 1};
  if (text.size() < 2) return std::nullopt;
  Type type;
  switch (text[0]) {
    case 'u':
      type.kind = Type::kUnsigned;
      break;
    case 's':
      type.kind = Type::kSigned;
      break;
    case 'b':
      type.kind = Type::kBits;
      break;
    case 'f':
      type.kind = Type::kFloat;
      break;
    default:
      return std::nullopt;
  }
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), type.bits);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (type.kind == Type::kFloat) return type.bits == 32 ? std::optional(type) : std::nullopt;
  const bool known = type.bits == 8 || type.bits == 16 || type.bits == 32 || type.bits == 64;
  return known ? std::optional(type) : std::nullopt;
}

/// The last part after a dot, which is cut off; empty if there is no dot.
std::string_view last_part(std::string_view text) {
  const auto dot = text.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : text.substr(dot + 1);
}
void cut_last_part(std::string_view& text) { text = text.substr(0, text.rfind('.')); }

}  // namespace

std::span<const Mnemonic> mnemonics() { return kMnemonics; }

Opcode find_opcode(std::string_view text, int line) {
  const auto fail = [&](const std::string& why) {
    throw UnknownPtx(line, "opcode '" + std::string(text) + "': " + why +
                               " (tests/ptx/README.md says how to add an opcode)");
  };
  std::string_view name = text;
  Opcode found;
  int num_types = 0;
  for (std::optional<Type> type; num_types < 2 && (type = type_of(last_part(name)));) {
    found.from = num_types++ == 0 ? *type : found.type;
    found.type = *type;
    cut_last_part(name);
  }
  if (last_part(name) == "v2" || last_part(name) == "v4") {
    found.num_elements = last_part(name) == "v2" ? 2 : 4;
    cut_last_part(name);
  }
  const auto mnemonic = std::find_if(kMnemonics.begin(), kMnemonics.end(),
                                     [&](const Mnemonic& one) { return one.name == name; });
  if (mnemonic == kMnemonics.end()) fail("the interpreter does not know it");
  if (num_types != mnemonic->num_types) {
    fail("it has " + std::to_string(num_types) + " types, not " +
         std::to_string(mnemonic->num_types));
  }
  if (num_types != 0 && (found.type.kind & mnemonic->kinds) == 0) {
    fail("the interpreter does not know it with this type");
  }
  if (num_types == 2 && (found.from.kind & mnemonic->kinds) == 0) {
    fail("the interpreter does not know it with this source type");
  }
  const bool accesses = mnemonic->op == Op::kLoadGlobal || mnemonic->op == Op::kStoreGlobal;
  if (found.num_elements != 1 && !accesses) fail("it is no access to global memory, and a vector");
  found.mnemonic = &*mnemonic;
  return found;
}

}  // namespace kvferry::ptx
