// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/tag_weights.hpp"

#include <cstddef>
#include <cstdint>

namespace kvferry::gpu {

/// Two vectors of a row, which one AVX2 instruction takes.
inline constexpr std::size_t kGroupBytes = 2 * std::size_t{kMaxWidth};

/// Whether this processor has AVX2 and the build has the functions below.
[[nodiscard]] bool has_avx2();

/// The sum of a whole row, without the row's factor. It prefetches the row at `next`, which is not
/// read and may be any address. Only if has_avx2().
[[nodiscard]] std::uint64_t row_sum_avx2(const std::byte* row, const std::byte* next);

/// Also copies the row to `to`, which is the beginning of a cache line, with stores that bypass the
/// caches (base/streaming_copy.hpp), in the same pass. Only if has_avx2().
[[nodiscard]] std::uint64_t stream_row_avx2(std::byte* to, const std::byte* row,
                                            const std::byte* next);

/// The sum of `count` groups, of which the first is group `first` of the row, without the row's
/// factor. Only if has_avx2().
[[nodiscard]] std::uint64_t groups_sum_avx2(const std::byte* groups, std::size_t first,
                                            std::size_t count);

}  // namespace kvferry::gpu
