// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/kernel.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace kvferry::ptx {

/// The kernels of a module, in order of their text.
[[nodiscard]] std::vector<std::string> kernel_names(std::string_view module);

/// Reads the kernel `name`. Throws UnknownPtx, with the line, for whatever the interpreter does not
/// know: an opcode, a type, an operand, a register that was not declared, a label.
[[nodiscard]] Kernel parse_kernel(std::string_view module, std::string_view name);

}  // namespace kvferry::ptx
