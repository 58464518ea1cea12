// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace kvferry {

/// The id of the machine's present boot, as the kernel has it below `proc`; empty if it cannot be
/// read. What is in shared memory does not outlive a boot.
[[nodiscard]] std::string present_boot(const std::filesystem::path& proc = "/proc");

}  // namespace kvferry
