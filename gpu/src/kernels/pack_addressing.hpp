// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/pack_arguments.hpp"

#if defined(__CUDACC__) || defined(__HIP__)
#define KVFERRY_HOST_DEVICE __host__ __device__ __forceinline__
#define KVFERRY_UNROLL _Pragma("unroll")
#define KVFERRY_NO_UNROLL _Pragma("unroll 1")
#else
#define KVFERRY_HOST_DEVICE inline
#define KVFERRY_UNROLL
#define KVFERRY_NO_UNROLL
#endif

/// Decides which thread moves which bytes of which block. The same text runs in the kernels and, as
/// host code, in the test that walks every thread of a launch.
///
/// A packed block is cut into *units* of equal size (the last one is shorter), regardless of the
/// fragments, so that all units cost the same. The vector kernels deal the units of all blocks in
/// turn to the *teams* of the grid. The bulk kernels give each CTA a *share* of neighbouring units.
/// A unit is one or more *pieces*, each within one fragment.
namespace kvferry::gpu {

/// The threads that share a unit: an NVIDIA warp, or half an AMD wave. No team waits for another.
inline constexpr uint32_t kTeamLanes = 32;
/// Bytes of a unit of the vector kernels: kTeamLanes lanes x 16 bytes x 8 loads in flight.
inline constexpr uint32_t kUnitBytes = 4096;
inline constexpr uint32_t kLoadsInFlight = 8;
/// The widest access of one thread.
inline constexpr uint32_t kMaxWidth = 16;
/// Bytes of a unit of the bulk-copy kernels, which is one stage in shared memory.
inline constexpr uint32_t kBulkUnitBytes = 8192;
/// Shared memory per stage: its bytes, and its 8-byte barrier, padded to 16, after all stages.
inline constexpr uint32_t kBulkStageFootprint = kBulkUnitBytes + 16;

struct PackUnit {
  /// Index into `block_ids`.
  uint32_t block;
  /// The range of the packed block.
  uint64_t begin;
  uint64_t end;
};

/// `bytes` bytes at `pool` in the engine's pool and at `packed` in packed memory.
struct PackPiece {
  uint64_t pool;
  uint64_t packed;
  uint64_t bytes;
};

KVFERRY_HOST_DEVICE constexpr uint64_t units_per_block(uint64_t packed_bytes, uint32_t unit_bytes) {
  return (packed_bytes + unit_bytes - 1) / unit_bytes;
}

/// The units of the launch. plan_pack() keeps them below 2^31, so that counting in steps of a whole
/// grid cannot wrap.
KVFERRY_HOST_DEVICE constexpr uint32_t num_units(const PackArguments& arguments,
                                                 uint32_t unit_bytes) {
  return static_cast<uint32_t>(units_per_block(arguments.packed_bytes, unit_bytes)) *
         arguments.num_blocks;
}

/// The unit that begins at byte `begin` of a packed block.
KVFERRY_HOST_DEVICE constexpr PackUnit unit_from(const PackArguments& arguments,
                                                 uint32_t unit_bytes, uint32_t block,
                                                 uint64_t begin) {
  const uint64_t rest = arguments.packed_bytes - begin;
  return {block, begin, begin + (rest < unit_bytes ? rest : unit_bytes)};
}

KVFERRY_HOST_DEVICE constexpr PackUnit unit_at(const PackArguments& arguments, uint32_t unit_bytes,
                                               uint32_t unit) {
  const auto per_block = static_cast<uint32_t>(units_per_block(arguments.packed_bytes, unit_bytes));
  const uint32_t block = unit / per_block;
  return unit_from(arguments, unit_bytes, block, uint64_t{unit - block * per_block} * unit_bytes);
}

/// The unit after `unit`. After the last unit of the launch it is in no block.
KVFERRY_HOST_DEVICE constexpr PackUnit unit_after(const PackArguments& arguments,
                                                  uint32_t unit_bytes, const PackUnit& unit) {
  const bool is_last = unit.end == arguments.packed_bytes;
  return unit_from(arguments, unit_bytes, unit.block + (is_last ? 1U : 0U), is_last ? 0 : unit.end);
}

/// `count` units from the `first` on.
struct UnitShare {
  uint32_t first;
  uint32_t count;
};

/// What one CTA of a bulk kernel moves. Shares differ by one unit at most.
KVFERRY_HOST_DEVICE constexpr UnitShare share_of(uint32_t units, uint32_t cta, uint32_t num_ctas) {
  const uint32_t each = units / num_ctas;
  const uint32_t rest = units % num_ctas;
  return {cta * each + (cta < rest ? cta : rest), each + (cta < rest ? 1U : 0U)};
}

/// The address of `unit` in packed memory.
KVFERRY_HOST_DEVICE constexpr uint64_t packed_address(const PackArguments& arguments,
                                                      const PackUnit& unit) {
  return arguments.packed + unit.block * arguments.packed_bytes + unit.begin;
}

/// The fragment that holds byte `offset` of a packed block.
KVFERRY_HOST_DEVICE constexpr uint32_t fragment_at(const PackArguments& arguments,
                                                   uint64_t offset) {
  uint32_t low = 0;
  uint32_t high = arguments.num_fragments;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (arguments.fragments[middle].packed_offset <= offset) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

KVFERRY_HOST_DEVICE constexpr bool overlap(const PackUnit& unit, const FragmentEntry& entry) {
  return entry.packed_offset < unit.end && unit.begin < entry.packed_offset + entry.bytes;
}

/// The part of `unit` that lies in a fragment; the two overlap.
KVFERRY_HOST_DEVICE constexpr PackPiece piece_of(const PackArguments& arguments,
                                                 const PackUnit& unit, const FragmentEntry& entry) {
  const uint64_t fragment_end = entry.packed_offset + entry.bytes;
  const uint64_t begin = entry.packed_offset > unit.begin ? entry.packed_offset : unit.begin;
  const uint64_t end = fragment_end < unit.end ? fragment_end : unit.end;
  const uint64_t block_id = arguments.block_ids[unit.block];
  return {entry.base + block_id * entry.block_stride_bytes + (begin - entry.packed_offset),
          arguments.packed + unit.block * arguments.packed_bytes + begin, end - begin};
}

/// The widest access (16, 8, 4, 2 or 1 bytes) for which two addresses have the same alignment.
KVFERRY_HOST_DEVICE constexpr uint32_t common_width(uint64_t one, uint64_t other) {
  const uint64_t bits = (one ^ other) | kMaxWidth;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

/// How a piece is cut for accesses of `width`: `head` single bytes up to the first aligned address,
/// `vectors` aligned accesses, `tail` single bytes.
struct PieceCut {
  uint32_t head;
  uint64_t vectors;
  uint32_t tail;
};

KVFERRY_HOST_DEVICE constexpr PieceCut cut_piece(uint64_t address, uint64_t bytes, uint32_t width) {
  const uint64_t to_aligned = (~address + 1) & (width - 1);
  const uint64_t head = to_aligned < bytes ? to_aligned : bytes;
  const uint64_t vectors = (bytes - head) / width;
  return {static_cast<uint32_t>(head), vectors,
          static_cast<uint32_t>(bytes - head - vectors * width)};
}

}  // namespace kvferry::gpu
