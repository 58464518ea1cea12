// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/block_geometry.hpp"

#include "kernels/pack_arguments.hpp"
#include "kernels/pack_way.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvferry::gpu {

/// Whether the device and its code object have the bulk-copy kernels: compute capability 9.0 or
/// higher.
enum class BulkCopy : bool { kNo, kYes };

struct PackDevice {
  std::uint32_t num_multiprocessors = 1;
  BulkCopy bulk_copy = BulkCopy::kNo;
};

enum class PackKernel : std::uint8_t { kAuto, kVector, kBulk };

/// Values that should be measured on each kind of device. pack_launch.cpp has the defaults.
struct PackTuning {
  /// kBulk falls back to the vector kernels if the bulk kernels cannot be used.
  PackKernel kernel = PackKernel::kAuto;
  /// Most CTAs of a launch. 0: for a gather, as many as fill the device (nothing runs next to it on
  /// the compute stream); for a scatter, few (the forward pass runs at the same time).
  std::uint32_t max_ctas = 0;
  /// Stages of 8 KiB per CTA of a bulk kernel, 2 to 16; 0: the default. More than 5 exceed 48 KiB
  /// of shared memory and need a higher limit of the function.
  std::uint32_t bulk_stages = 0;
};

/// One launch: a grid and CTAs of one dimension, `shared_bytes` of dynamic shared memory, one
/// parameter, PackArguments by value.
struct PackLaunch {
  /// "kvferry_gather" or "kvferry_scatter", alone, with "_bulk" or with "_tagged", or
  /// "kvferry_sum".
  const char* kernel = nullptr;
  std::uint32_t num_ctas = 0;
  std::uint32_t threads_per_cta = 0;
  std::uint32_t shared_bytes = 0;
};

/// How to pack `num_blocks` blocks, 1 to kMaxPackBlocks. `packed` is the device's address of the
/// packed memory, which kSum does not use. Only vector kernels make sums. Throws ConfigError if one
/// launch would be 16 TiB or more.
[[nodiscard]] PackLaunch plan_pack(const BlockGeometry& geometry, std::uint32_t num_blocks,
                                   std::uintptr_t packed, PackWay way, const PackDevice& device,
                                   const PackTuning& tuning = {}, PackSums sums = PackSums::kNo);

/// Whether the bulk-copy kernels can move these bytes: every address, stride, size and offset is a
/// multiple of 16 (PTX ISA, cp.async.bulk).
[[nodiscard]] bool can_bulk_copy(const BlockGeometry& geometry, std::uintptr_t packed);

/// The table that the kernels read, to be copied to device memory.
[[nodiscard]] std::vector<FragmentEntry> fragment_table(const BlockGeometry& geometry);

/// The kernels' parameter. `fragments` is the table's address in device memory. There are at most
/// kMaxPackBlocks `blocks`. `sums` is the address to which the first block's sum is added.
[[nodiscard]] PackArguments pack_arguments(const BlockGeometry& geometry, std::uintptr_t fragments,
                                           std::span<const BlockId> blocks, std::uintptr_t packed,
                                           std::uintptr_t sums = 0);

}  // namespace kvferry::gpu
