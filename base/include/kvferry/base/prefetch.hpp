// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvferry {

/// Fetches the cache line of `address` early. Use these two in functions that do nothing else: GCC
/// 12 takes a function that only calls __builtin_prefetch for one without any effect, and drops the
/// calls of it. The empty assembly statement counts as an effect, and is no instruction.
inline void prefetch(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}
/// The same for a line that is about to be written.
inline void prefetch_to_write(const void* address) {
  __builtin_prefetch(address, 1);
  asm volatile("");
}

}  // namespace kvferry
