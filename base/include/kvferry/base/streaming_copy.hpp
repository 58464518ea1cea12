// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// KVFERRY_STREAMING_STORES is defined if there are such stores: on x86-64, but not in sanitizer
/// builds, which could not see them.
#if defined(__has_feature)
#define KVFERRY_HAS_FEATURE(feature) __has_feature(feature)
#else
#define KVFERRY_HAS_FEATURE(feature) 0
#endif
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !KVFERRY_HAS_FEATURE(address_sanitizer) && !KVFERRY_HAS_FEATURE(thread_sanitizer)
#define KVFERRY_STREAMING_STORES 1
#endif
#undef KVFERRY_HAS_FEATURE

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
