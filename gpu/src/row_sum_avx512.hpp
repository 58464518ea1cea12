// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvferry::gpu {

/// Whether this processor has AVX-512 (F and DQ) and the build has the functions below.
[[nodiscard]] bool has_avx512();

// The sum of a whole row, without the row's factor. The row at `next` is prefetched: it is not
// read, and may be at any address. Only if has_avx512().

[[nodiscard]] std::uint64_t row_sum_avx512(const std::byte* row, const std::byte* next);
/// Also copies the row to `to`, in the same pass.
[[nodiscard]] std::uint64_t copy_row_avx512(std::byte* to, const std::byte* row,
                                            const std::byte* next);
/// The same with stores that bypass the caches (base/streaming_copy.hpp). `to` is the beginning of
/// a cache line.
[[nodiscard]] std::uint64_t stream_row_avx512(std::byte* to, const std::byte* row,
                                              const std::byte* next);

}  // namespace kvferry::gpu
