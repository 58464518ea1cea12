// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace kvferry::gpu {

/// "4096 bytes at 0x7f0012340000", for error messages.
[[nodiscard]] std::string range_text(std::uintptr_t address, std::uint64_t bytes);

}  // namespace kvferry::gpu
