// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/pack_addressing.hpp"

/// What one thread of a launch does, written once for the kernels and for host emulation. `Access`
/// says how bytes are loaded and stored:
///
///   template <uint32_t Width> Vector<Width>    a value of Width bytes
///   load<Width>(uint64_t from) -> Vector<Width>, store<Width>(uint64_t to, Vector<Width>)
namespace kvferry::gpu {

/// Where a thread stands in its launch.
struct PackThread {
  uint32_t cta;
  uint32_t num_ctas;
  uint32_t thread;
  uint32_t threads_per_cta;
};

/// A lane's share of `count` vectors. All loads of a round are issued before its first store.
template <uint32_t Width, typename Access>
KVFERRY_HOST_DEVICE void move_vectors(Access& access, uint64_t to, uint64_t from, uint64_t count,
                                      uint32_t lane) {
  using Vector = typename Access::template Vector<Width>;
  constexpr uint32_t kStep = kTeamLanes * Width;
  const uint64_t rounds = count / (kTeamLanes * kLoadsInFlight);
  from += lane * Width;
  to += lane * Width;
  KVFERRY_NO_UNROLL
  for (uint64_t round = 0; round < rounds; ++round) {
    Vector held[kLoadsInFlight];
    KVFERRY_UNROLL
    for (uint32_t i = 0; i < kLoadsInFlight; ++i) {
      held[i] = access.template load<Width>(from + i * kStep);
    }
    KVFERRY_UNROLL
    for (uint32_t i = 0; i < kLoadsInFlight; ++i) {
      access.template store<Width>(to + i * kStep, held[i]);
    }
    from += kStep * kLoadsInFlight;
    to += kStep * kLoadsInFlight;
  }
  const auto rest = static_cast<uint32_t>(count - rounds * (kTeamLanes * kLoadsInFlight));
  if (rest == 0) return;
  // Initialised, or else the compiler keeps what the lanes without a load would have held, over all
  // units: 132 registers instead of 64.
  Vector held[kLoadsInFlight] = {};
  KVFERRY_UNROLL
  for (uint32_t i = 0; i < kLoadsInFlight; ++i) {
    if (lane + i * kTeamLanes < rest) held[i] = access.template load<Width>(from + i * kStep);
  }
  KVFERRY_UNROLL
  for (uint32_t i = 0; i < kLoadsInFlight; ++i) {
    if (lane + i * kTeamLanes < rest) access.template store<Width>(to + i * kStep, held[i]);
  }
}

template <uint32_t Width, typename Access>
KVFERRY_HOST_DEVICE void move_bytes_as(Access& access, uint64_t to, uint64_t from, uint64_t bytes,
                                       uint32_t lane) {
  const PieceCut cut = cut_piece(to, bytes, Width);
  static_assert(kMaxWidth <= kTeamLanes, "heads and tails are one byte per lane");
  if (lane < cut.head) {
    access.template store<1>(to + lane, access.template load<1>(from + lane));
  }
  move_vectors<Width>(access, to + cut.head, from + cut.head, cut.vectors, lane);
  if (lane < cut.tail) {
    const uint64_t at = cut.head + cut.vectors * Width + lane;
    access.template store<1>(to + at, access.template load<1>(from + at));
  }
}

/// A lane's share of a contiguous copy.
template <typename Access>
KVFERRY_HOST_DEVICE void move_bytes(Access& access, uint64_t to, uint64_t from, uint64_t bytes,
                                    uint32_t lane) {
  switch (common_width(to, from)) {
    case 16:
      return move_bytes_as<16>(access, to, from, bytes, lane);
    case 8:
      return move_bytes_as<8>(access, to, from, bytes, lane);
    case 4:
      return move_bytes_as<4>(access, to, from, bytes, lane);
    case 2:
      return move_bytes_as<2>(access, to, from, bytes, lane);
    default:
      return move_bytes_as<1>(access, to, from, bytes, lane);
  }
}

enum class WalkWay { kGather, kScatter };

/// Everything one thread of a vector kernel does.
template <WalkWay Way, typename Access>
KVFERRY_HOST_DEVICE void walk_units(Access& access, const PackArguments& arguments,
                                    const PackThread& at) {
  const uint32_t teams_per_cta = at.threads_per_cta / kTeamLanes;
  const uint32_t lane = at.thread % kTeamLanes;
  const uint32_t first = at.cta * teams_per_cta + at.thread / kTeamLanes;
  const uint32_t units = num_units(arguments, kUnitBytes);
  KVFERRY_NO_UNROLL
  for (uint32_t u = first; u < units; u += at.num_ctas * teams_per_cta) {
    const PackUnit unit = unit_at(arguments, kUnitBytes, u);
    uint32_t fragment = fragment_at(arguments, unit.begin);
    KVFERRY_NO_UNROLL
    for (uint64_t offset = unit.begin; offset < unit.end; ++fragment) {
      const PackPiece piece = piece_of(arguments, unit, fragment);
      if (Way == WalkWay::kGather) {
        move_bytes(access, piece.packed, piece.pool, piece.bytes, lane);
      } else {
        move_bytes(access, piece.pool, piece.packed, piece.bytes, lane);
      }
      offset += piece.bytes;
    }
  }
}

/// A lane's pieces of a unit of the bulk-copy kernels, each handed to `visit(piece, offset of the
/// piece in the stage)`.
template <typename Visit>
KVFERRY_HOST_DEVICE void walk_bulk_pieces(const PackArguments& arguments, const PackUnit& unit,
                                          uint32_t lane, Visit visit) {
  const uint32_t last = fragment_at(arguments, unit.end - 1);
  for (uint32_t f = fragment_at(arguments, unit.begin) + lane; f <= last; f += kTeamLanes) {
    const PackPiece piece = piece_of(arguments, unit, f);
    visit(piece, static_cast<uint32_t>(piece.packed - packed_address(arguments, unit)));
  }
}

}  // namespace kvferry::gpu
