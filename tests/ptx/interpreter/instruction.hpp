// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvferry::ptx {

enum class Op : std::uint8_t {
  // One result of registers and immediates: arithmetic.cpp.
  kMove,
  kAdd,
  kSubtract,
  kMultiply,
  kMultiplyHigh,
  kMultiplyWide,
  kMultiplyAdd,
  kDivide,
  kMinimum,
  kMaximum,
  kAnd,
  kOr,
  kXor,
  kShiftLeft,
  kShiftRight,
  kFunnelShiftLeft,
  kNegate,
  kSelect,
  kCompare,
  kConvert,
  kToGlobal,
  // Flow and memory: block_memory.cpp, block_bulk.cpp.
  kBranch,
  kReturn,
  kLoadParameter,
  kLoadGlobal,
  kStoreGlobal,
  kAddGlobal,
  kShuffle,
  kWarpBarrier,
  kBarrierInit,
  kBarrierExpect,
  kBarrierWait,
  kBulkLoad,
  kBulkStore,
  kBulkCommit,
  kBulkWaitRead,
  kBulkWait,
  kFence,
  kPolicy
};

enum class Comparison : std::uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual
};

struct Type {
  enum Kind : std::uint8_t {
    kNone = 0,
    kUnsigned = 1,
    kSigned = 2,
    kBits = 4,
    kFloat = 8,
    kPredicate = 16
  };

  Kind kind = kNone;
  std::uint8_t bits = 0;

  [[nodiscard]] std::uint32_t bytes() const { return bits / 8U; }
};

enum class Special : std::uint8_t { kThread, kNumThreads, kBlock, kNumBlocks, kDynamicSharedBytes };

struct Operand {
  enum Kind : std::uint8_t { kIgnored, kRegister, kImmediate, kSpecial, kAddress, kVector, kLabel };
  static constexpr int kNoRegister = -1;

  Kind kind = kIgnored;
  Special special{};
  /// The register, or the base of an address: kNoRegister if it has none.
  int reg = kNoRegister;
  /// The immediate, or the offset of an address.
  std::uint64_t value = 0;
  std::array<int, 4> vector{};
};

/// One statement of a kernel.
struct Instruction {
  static constexpr std::size_t kMaxOperands = 5;

  Op op{};
  Comparison comparison{};
  /// The type that the opcode ends with; of a conversion, the result's.
  Type type;
  /// Of a conversion, the source's.
  Type from;
  /// Elements of a vector access, else 1.
  std::uint8_t num_elements = 1;
  bool predicate_negated = false;
  /// The register that decides whether it runs, or Operand::kNoRegister.
  int predicate = Operand::kNoRegister;
  std::array<Operand, kMaxOperands> operands;
  std::uint8_t num_operands = 0;
  /// Of a branch: the index of the instruction to go to.
  std::size_t target = 0;
  /// In the PTX file, from 1.
  int line = 0;
  std::string text;
};

}  // namespace kvferry::ptx
