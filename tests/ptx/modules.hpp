// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/kernel.hpp"

#include <string>
#include <vector>

/// The PTX of the build.
namespace kvferry::ptx {

/// "compute_80" and so on: what nvcc hands to its assembler for each architecture that the build
/// embeds. "embedded": the PTX within the embedded image, which drivers compile for newer devices.
/// Empty if built without nvcc.
[[nodiscard]] const std::vector<std::string>& module_names();

/// The text of a module. Throws std::runtime_error if the build did not make it.
[[nodiscard]] const std::string& module_text(const std::string& name);

/// The kernel of a module, read once. Throws UnknownPtx.
[[nodiscard]] const Kernel& kernel_of(const std::string& module, const std::string& name);

}  // namespace kvferry::ptx
