// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace kvferry {

/// As std::memcpy, but with stores that pass the caches by (non-temporal ones), so that memory that
/// nobody reads soon is neither read first nor pushes anything out. Where the processor or the
/// build has no such stores (not x86-64; builds with a sanitizer, which could not see them) it is
/// std::memcpy. The bytes may be seen by another thread before or after whatever this thread writes
/// later, until finish_streaming(). Thread-safe; does not throw.
void copy_streaming(void* destination, const void* source, std::size_t bytes) noexcept;

/// Orders what this thread has copied before whatever it writes later: to be called on the copying
/// thread before it says that the bytes are there.
void finish_streaming() noexcept;

}  // namespace kvferry
