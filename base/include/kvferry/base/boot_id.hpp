// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace kvferry {

/// The id of the machine's present boot, as the kernel has it below `proc`; empty if the kernel has
/// none. What is in shared memory does not outlive a boot. Throws ResourceError if the id is there
/// and cannot be read: it must not be taken for another boot's.
[[nodiscard]] std::string present_boot(const std::filesystem::path& proc = "/proc");

}  // namespace kvferry
