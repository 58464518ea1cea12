// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry::gpu {

/// Gather: pool blocks into packed memory. Scatter: the reverse. Sum: reads pool blocks only.
enum class PackWay : std::uint8_t { kGather, kScatter, kSum };

/// Whether the sums of the blocks are made at the same time; kSum makes them in any case.
enum class PackSums : bool { kNo, kYes };

}  // namespace kvferry::gpu
