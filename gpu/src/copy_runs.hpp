// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/gpu/block_geometry.hpp"
#include "kvferry/gpu/device.hpp"

#include "kernels/pack_way.hpp"

#include <cstdint>
#include <span>

namespace kvferry::gpu {

/// Checks one batch against the contract of Stream::copy, except for registrations; the same for
/// every back end. Throws DeviceError with the offending run. Linear for ascending destinations,
/// otherwise one sort.
void check_copy_runs(std::span<const CopyRun> runs);

/// The same for Stream::gather and scatter: throws DeviceError with a block outside the geometry.
void check_blocks(const BlockGeometry& geometry, std::span<const BlockId> blocks);

/// Checks the address to which an operation adds its sums; 0 is allowed except for kSum. Throws
/// DeviceError.
void check_sums(PackWay way, std::uintptr_t sums);

/// Bytes of all runs together.
[[nodiscard]] std::uint64_t total_bytes(std::span<const CopyRun> runs);

}  // namespace kvferry::gpu
