// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/instruction.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::ptx {

/// Where the parameter's bytes begin in a register that holds their address. Far from all that a
/// launch can map.
inline constexpr std::uint64_t kParameterAddress = 0x5000'0000'0000'0000U;
/// Where dynamic shared memory begins in the shared window: after the KiB that the system reserves.
inline constexpr std::uint32_t kSharedAddress = 1024;

/// One kernel as its text says it. Immutable after parse_kernel().
struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  int num_registers = 0;
  std::uint32_t parameter_bytes = 0;
  /// The bound of .maxntid.
  std::uint32_t max_threads = 0;
  /// What the opcodes are called in mnemonics.hpp, for each instruction.
  std::vector<std::string_view> mnemonics;
};

}  // namespace kvferry::ptx
