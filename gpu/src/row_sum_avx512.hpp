// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvferry::gpu {

/// Whether this processor has AVX-512 (F and DQ) and the build has the functions below.
[[nodiscard]] bool has_avx512();

// The sum of a whole row, without the row's factor. Only if has_avx512().

/// It prefetches the row at `next`, which is not read and may be any address.
[[nodiscard]] std::uint64_t row_sum_avx512(const std::byte* row, const std::byte* next);
/// Also copies the row to `to`, in the same pass. It prefetches the memory after the row.
[[nodiscard]] std::uint64_t copy_row_avx512(std::byte* to, const std::byte* row);
/// The same with stores that bypass the caches (base/streaming_copy.hpp). `to` is the beginning of
/// a cache line.
[[nodiscard]] std::uint64_t stream_row_avx512(std::byte* to, const std::byte* row);

}  // namespace kvferry::gpu
