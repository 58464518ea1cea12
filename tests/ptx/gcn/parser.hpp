// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gcn/instruction.hpp"

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::gcn {

/// The interpreter cannot read the text. The message names the line.
class UnknownAssembly : public std::runtime_error {
 public:
  UnknownAssembly(int line, const std::string& what)
      : std::runtime_error("assembly line " + std::to_string(line) + ": " + what) {}
};

/// The kernels of an assembly file that hipcc -S wrote, in order of their text.
[[nodiscard]] std::vector<std::string> kernel_names(std::string_view assembly);

/// Reads the kernel `name`. Throws UnknownAssembly for whatever the interpreter does not know.
[[nodiscard]] Kernel parse_kernel(std::string_view assembly, std::string_view name);

}  // namespace kvferry::gcn
