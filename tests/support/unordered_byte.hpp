// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry::gpu {

/// Reads a byte that another thread may be writing, with nothing that orders the two: for a test
/// that waits for a copy of whose end nothing tells. ThreadSanitizer does not look.
__attribute__((no_sanitize("thread"), noinline)) inline std::uint8_t unordered_byte(
    std::uintptr_t address) {
  return *reinterpret_cast<const volatile std::uint8_t*>(address);
}

}  // namespace kvferry::gpu
