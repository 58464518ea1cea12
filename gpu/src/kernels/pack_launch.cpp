// SPDX-License-Identifier: Apache-2.0
#include "kernels/pack_launch.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"

#include "kernels/pack_addressing.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace kvferry::gpu {
namespace {

constexpr std::uint32_t kVectorThreads = 256;

// CTAs per multiprocessor for a launch that has the device to itself. Vector: as many as the
// registers allow (64 each, by __launch_bounds__), with 128 KiB in flight. Bulk: the same bytes, in
// stages.
constexpr std::uint32_t kVectorCtasPerMultiprocessor = 4;
constexpr std::uint32_t kBulkCtasPerMultiprocessor = 4;

// CTAs of a scatter next to the forward pass. A bulk CTA is one warp. Its instructions wait behind
// those of the kernels beside it, so more CTAs end sooner and cost these kernels no more: on an
// H100 16, 32 and 64 CTAs scattered 16 MiB beside a busy device in 0.43 to 0.50, 0.25 and 0.16 ms
// (bench/RESULTS.md). A vector CTA is eight warps.
constexpr std::uint32_t kBulkCtasOfScatter = 64;
constexpr std::uint32_t kVectorCtasOfScatter = 16;

constexpr std::uint32_t kDefaultBulkStages = 4;
constexpr std::uint32_t kMaxBulkStages = 16;

// Below this size the bulk kernels spend more on issuing than on moving: 16 instructions of a lane
// per stage.
constexpr std::uint64_t kMinBulkFragmentBytes = 512;

bool wants_bulk(const BlockGeometry& geometry, std::uintptr_t packed, const PackDevice& device,
                PackKernel kernel) {
  if (kernel == PackKernel::kVector || device.bulk_copy == BulkCopy::kNo) return false;
  if (!can_bulk_copy(geometry, packed)) return false;
  return kernel == PackKernel::kBulk ||
         geometry.packed_bytes / geometry.fragments.size() >= kMinBulkFragmentBytes;
}

std::uint32_t most_ctas(PackWay way, const PackDevice& device, const PackTuning& tuning,
                        std::uint32_t per_multiprocessor, std::uint32_t of_scatter) {
  if (tuning.max_ctas != 0) return tuning.max_ctas;
  const std::uint32_t whole = std::max(device.num_multiprocessors, 1U) * per_multiprocessor;
  return way == PackWay::kGather ? whole : std::min(whole, of_scatter);
}

std::uint32_t count_units(const BlockGeometry& geometry, std::uint32_t num_blocks,
                          std::uint32_t unit_bytes) {
  const std::uint64_t units = units_per_block(geometry.packed_bytes, unit_bytes) * num_blocks;
  // A thread adds the number of teams of the grid, at most 2^31, to a unit's number.
  if (units > std::numeric_limits<std::uint32_t>::max() / 2) {
    throw ConfigError("a launch of " + std::to_string(num_blocks) + " blocks of " +
                      std::to_string(geometry.packed_bytes) + " bytes is too large");
  }
  return static_cast<std::uint32_t>(units);
}

const char* vector_kernel(PackWay way, PackSums sums) {
  const bool tagged = sums == PackSums::kYes;
  switch (way) {
    case PackWay::kGather:
      return tagged ? "kvferry_gather_tagged" : "kvferry_gather";
    case PackWay::kScatter:
      return tagged ? "kvferry_scatter_tagged" : "kvferry_scatter";
    case PackWay::kSum:
      break;
  }
  return "kvferry_sum";
}

}  // namespace

bool can_bulk_copy(const BlockGeometry& geometry, std::uintptr_t packed) {
  // Packed offsets are sums of the sizes.
  std::uint64_t bits = packed;
  for (const Fragment& fragment : geometry.fragments) {
    bits |= fragment.base | fragment.block_stride_bytes | fragment.bytes;
  }
  return bits % kMaxWidth == 0;
}

PackLaunch plan_pack(const BlockGeometry& geometry, std::uint32_t num_blocks, std::uintptr_t packed,
                     PackWay way, const PackDevice& device, const PackTuning& tuning,
                     PackSums sums) {
  KVFERRY_CHECK(num_blocks > 0 && num_blocks <= kMaxPackBlocks,
                std::to_string(num_blocks) + " blocks in one launch");
  const bool makes_sums = sums == PackSums::kYes || way == PackWay::kSum;
  if (!makes_sums && wants_bulk(geometry, packed, device, tuning.kernel)) {
    const std::uint32_t stages = tuning.bulk_stages == 0
                                     ? kDefaultBulkStages
                                     : std::clamp(tuning.bulk_stages, 2U, kMaxBulkStages);
    const std::uint32_t units = count_units(geometry, num_blocks, kBulkUnitBytes);
    return {way == PackWay::kGather ? "kvferry_gather_bulk" : "kvferry_scatter_bulk",
            std::min(units, most_ctas(way, device, tuning, kBulkCtasPerMultiprocessor,
                                      kBulkCtasOfScatter)),
            kTeamLanes, stages * kBulkStageFootprint};
  }
  constexpr std::uint32_t kTeams = kVectorThreads / kTeamLanes;
  const std::uint32_t units = count_units(geometry, num_blocks, kUnitBytes);
  return {
      vector_kernel(way, sums),
      std::min((units + kTeams - 1) / kTeams,
               most_ctas(way, device, tuning, kVectorCtasPerMultiprocessor, kVectorCtasOfScatter)),
      kVectorThreads, 0};
}

std::vector<FragmentEntry> fragment_table(const BlockGeometry& geometry) {
  std::vector<FragmentEntry> table;
  table.reserve(geometry.fragments.size());
  for (std::size_t i = 0; i < geometry.fragments.size(); ++i) {
    const Fragment& fragment = geometry.fragments[i];
    table.push_back(
        {fragment.base, fragment.block_stride_bytes, fragment.bytes, geometry.packed_offsets[i]});
  }
  return table;
}

PackArguments pack_arguments(const BlockGeometry& geometry, std::uintptr_t fragments,
                             std::span<const BlockId> blocks, std::uintptr_t packed,
                             std::uintptr_t sums) {
  KVFERRY_CHECK(blocks.size() <= kMaxPackBlocks,
                std::to_string(blocks.size()) + " blocks in one launch");
  PackArguments arguments;  // Only the ids in use are written.
  arguments.fragments = reinterpret_cast<const FragmentEntry*>(fragments);
  arguments.num_fragments = static_cast<std::uint32_t>(geometry.fragments.size());
  arguments.packed_bytes = geometry.packed_bytes;
  arguments.packed = packed;
  arguments.sums = sums;
  arguments.num_blocks = static_cast<std::uint32_t>(blocks.size());
  std::transform(blocks.begin(), blocks.end(), arguments.block_ids,
                 [](BlockId block) { return block.value(); });
  return arguments;
}

}  // namespace kvferry::gpu
