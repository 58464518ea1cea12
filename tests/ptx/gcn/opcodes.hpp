// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

/// Which opcodes the interpreter of AMD's assembly knows, and what those mean that have one result.
/// Source: "AMD Instinct MI200 Instruction Set Architecture" and its MI300 edition.
namespace kvferry::gcn {

enum class Form : std::uint8_t {
  kScalar,         ///< s_: result and SCC of two sources and SCC.
  kSaveExec,       ///< s_…_saveexec: EXEC goes to the result, the new one is of source and EXEC.
  kBranch,         ///< Goes if its value, of EXEC, VCC and SCC, is not 0.
  kScalarLoad,     ///< s_load.
  kWait,           ///< s_waitcnt.
  kNothing,        ///< s_nop.
  kEnd,            ///< s_endpgm.
  kVector,         ///< v_: a result per lane of up to three sources.
  kVectorCompare,  ///< v_cmp: a bit per lane.
  kVectorCarry,    ///< A result and a carry per lane, and a carry before if it has a fifth operand.
  kVectorMultiply,  ///< v_mad_u64_u32: a result of 64 bits and a carry.
  kVectorSelect,    ///< v_cndmask.
  kVectorPacked,    ///< Two results of 32 bits each.
  kReciprocal,      ///< v_rcp_iflag_f32: right but for the last bit.
  kReadFirstLane,   ///< v_readfirstlane.
  kLoad,            ///< global_load, flat_load.
  kStore,           ///< global_store, flat_store.
  kAtomicAdd,       ///< global_atomic_add of 64 bits, without a result.
  kPermute          ///< ds_bpermute: each lane gets the value of the lane that it names.
};

using Function = std::uint64_t (*)(std::uint64_t a, std::uint64_t b, std::uint64_t c);

/// A row of the table. Sizes are in registers of 32 bits.
struct Opcode {
  /// Without _e32 and _e64, which only say how it is encoded.
  std::string_view name;
  Form form;
  std::uint8_t num_operands;
  std::uint8_t result_size = 1;
  std::array<std::uint8_t, 3> source_sizes{1, 1, 1};
  Function value = nullptr;
  /// What becomes of SCC, as 0 or 1; null if it stays.
  Function scc = nullptr;
  /// Of an access: bytes per lane.
  std::uint8_t bytes = 0;
};

[[nodiscard]] std::span<const Opcode> opcodes();

/// The row of an opcode as the assembly has it, with or without its encoding; null if there is
/// none.
[[nodiscard]] const Opcode* find_opcode(std::string_view text);

}  // namespace kvferry::gcn
