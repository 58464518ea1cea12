// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gcn/instruction.hpp"

#include <string>
#include <vector>

/// The assembly of the kernels for AMD's devices.
namespace kvferry::ptx {

/// "gfx90a" and so on: every architecture that the build embeds. Empty if built without hipcc.
[[nodiscard]] const std::vector<std::string>& gcn_module_names();

/// What hipcc hands to its assembler. Throws std::runtime_error if the build did not make it.
[[nodiscard]] const std::string& gcn_module_text(const std::string& name);

/// The kernel of a module, read once. Throws gcn::UnknownAssembly.
[[nodiscard]] const gcn::Kernel& gcn_kernel_of(const std::string& module, const std::string& name);

}  // namespace kvferry::ptx
