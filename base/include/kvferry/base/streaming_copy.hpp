// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvferry {

/// As std::memcpy, but with non-temporal stores, which bypass the caches: the destination is not
/// read first and evicts nothing from the caches. Use it for memory that is not read soon. Without
/// such stores (not x86-64; sanitizer builds, which could not see them) it is std::memcpy. Until
/// finish_streaming(), another thread can see the bytes before or after anything that this thread
/// writes later. Thread-safe; does not throw.
void copy_streaming(void* destination, const void* source, std::size_t bytes) noexcept;

/// Orders this thread's copies before its later writes. Call it on the copying thread before you
/// publish that the bytes are there.
void finish_streaming() noexcept;

}  // namespace kvferry
