// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/tag_weights.hpp"

/// The work of one thread of a launch, written once for the kernels and for host emulation.
/// `Access` defines how bytes are loaded and stored:
///
///   template <uint32_t Width> Vector<Width>    a value of Width bytes
///   load<Width>(uint64_t from) -> Vector<Width>, store<Width>(uint64_t to, Vector<Width>)
///
/// and, for sums:
///
///   word<Width>(Vector<Width>, uint32_t i) -> uint32_t    its i-th 32 bits, or all if it has fewer
///   add(uint64_t to, uint64_t part, uint32_t lane)        adds the parts of all lanes of a team
namespace kvferry::gpu {

/// The place of a thread in its launch.
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
  // It is initialised, because otherwise the compiler keeps the values of lanes without a load over
  // all units: 132 registers instead of 64.
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

enum class WalkWay { kGather, kScatter, kSum };

/// A lane's share of aligned vectors, of which the first is vector `place` of a row. It moves them
/// (kSum: only reads them) and returns the lane's part of their sum.
template <WalkWay Way, typename Access>
KVFERRY_HOST_DEVICE uint64_t sum_vectors(Access& access, uint64_t to, uint64_t from, uint32_t count,
                                         uint32_t place, uint32_t lane) {
  constexpr uint32_t kStep = kTeamLanes * kMaxWidth;
  from += lane * kMaxWidth;
  to += lane * kMaxWidth;
  typename Access::template Vector<kMaxWidth> held[kLoadsInFlight] = {};
  KVFERRY_UNROLL
  for (uint32_t i = 0; i < kLoadsInFlight; ++i) {
    if (lane + i * kTeamLanes < count) {
      held[i] = access.template load<kMaxWidth>(from + i * kStep);
    }
  }
  if constexpr (Way != WalkWay::kSum) {
    KVFERRY_UNROLL
    for (uint32_t i = 0; i < kLoadsInFlight; ++i) {
      if (lane + i * kTeamLanes < count) access.template store<kMaxWidth>(to + i * kStep, held[i]);
    }
  }
  uint64_t sum = 0;
  KVFERRY_UNROLL
  for (uint32_t i = kLoadsInFlight; i > 0; --i) {
    sum *= kTagStep;
    KVFERRY_UNROLL
    for (uint32_t word = 0; word < kTagWordsPerVector; ++word) {
      sum += access.template word<kMaxWidth>(held[i - 1], word) * tag_word(word);
    }
  }
  return sum * tag_column((place + lane) / kTeamLanes) * tag_lane((place + lane) % kTeamLanes);
}

/// The sum of the bytes of `value`, of which the first is byte `place` of a row.
KVFERRY_HOST_DEVICE constexpr uint64_t sum_of_value(uint32_t value, uint32_t place) {
  const uint64_t bits = uint64_t{value} << (place % kTagWordBytes * 8);
  const uint32_t word = place / kTagWordBytes;
  return static_cast<uint32_t>(bits) * tag_weight_in_row(word) +
         (bits >> 32) * tag_weight_in_row(word + 1);
}

/// A lane's part of the sum of any bytes, which start at byte `place` of a row.
template <typename Access>
KVFERRY_HOST_DEVICE uint64_t sum_bytes(Access& access, uint64_t from, uint64_t bytes,
                                       uint32_t place, uint32_t lane) {
  const PieceCut cut = cut_piece(from, bytes, kTagWordBytes);
  const auto words = static_cast<uint32_t>(cut.vectors);
  uint64_t sum = 0;
  KVFERRY_NO_UNROLL
  for (uint32_t i = lane; i < words; i += kTeamLanes) {
    const uint32_t at = cut.head + i * kTagWordBytes;
    const auto value = access.template load<kTagWordBytes>(from + at);
    sum += sum_of_value(access.template word<kTagWordBytes>(value, 0), place + at);
  }
  if (lane < cut.head + cut.tail) {
    const uint32_t at = lane < cut.head ? lane : lane + words * kTagWordBytes;
    sum += sum_of_value(access.template word<1>(access.template load<1>(from + at), 0), place + at);
  }
  return sum;
}

/// A lane's share of a piece that begins at byte `place` of its unit, and its part of the sum.
/// Bytes that are not aligned are moved as without sums, and then read once more.
template <WalkWay Way, typename Access>
KVFERRY_HOST_DEVICE uint64_t sum_piece(Access& access, uint64_t to, uint64_t from, uint64_t bytes,
                                       uint32_t place, uint32_t lane) {
  if (((Way == WalkWay::kSum ? 0 : to) | from | bytes | place) % kMaxWidth == 0) {
    return sum_vectors<Way>(access, to, from, static_cast<uint32_t>(bytes / kMaxWidth),
                            place / kMaxWidth, lane);
  }
  if constexpr (Way != WalkWay::kSum) move_bytes(access, to, from, bytes, lane);
  return sum_bytes(access, from, bytes, place, lane);
}

enum class WalkSums { kNo, kYes };

/// All the work of one thread of a vector kernel. kSum makes sums in any case.
template <WalkWay Way, WalkSums Sums, typename Access>
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
    uint64_t sum = 0;
    KVFERRY_NO_UNROLL
    for (uint64_t offset = unit.begin; offset < unit.end; ++fragment) {
      const FragmentEntry entry = arguments.fragments[fragment];
      const PackPiece piece = piece_of(arguments, unit, entry);
      const uint64_t to = Way == WalkWay::kGather ? piece.packed : piece.pool;
      const uint64_t from = Way == WalkWay::kScatter ? piece.packed : piece.pool;
      if constexpr (Sums == WalkSums::kYes || Way == WalkWay::kSum) {
        const auto place = static_cast<uint32_t>(offset - unit.begin);
        sum += sum_piece<Way>(access, to, from, piece.bytes, place, lane);
      } else {
        move_bytes(access, to, from, piece.bytes, lane);
      }
      offset += piece.bytes;
    }
    if constexpr (Sums == WalkSums::kYes || Way == WalkWay::kSum) {
      access.add(arguments.sums + unit.block * sizeof(uint64_t),
                 sum * tag_row(unit.begin / kUnitBytes), lane);
    }
  }
}

/// As many neighbouring fragments as a team has lanes, of which each lane holds one in registers.
/// Beside other kernels a read of the table takes microseconds, so units that follow one another
/// read it only where they leave the window.
struct FragmentWindow {
  uint32_t first = 0;
  /// The range of the packed block. At first it is empty and holds no unit.
  uint64_t begin = 0;
  uint64_t end = 0;
  /// Fragment `first` + lane. Without bytes if the table ends before it.
  FragmentEntry mine{};
};

KVFERRY_HOST_DEVICE FragmentWindow window_from(const PackArguments& arguments, uint32_t first,
                                               uint32_t lane) {
  FragmentWindow window;
  window.first = first;
  window.begin = arguments.fragments[first].packed_offset;
  const uint32_t rest = arguments.num_fragments - first;
  const uint32_t count = rest < kTeamLanes ? rest : kTeamLanes;
  const FragmentEntry& last = arguments.fragments[first + count - 1];
  window.end = last.packed_offset + last.bytes;
  if (lane < count) window.mine = arguments.fragments[first + lane];
  return window;
}

/// A window that holds the beginning of `unit`.
KVFERRY_HOST_DEVICE FragmentWindow window_at(const PackArguments& arguments, const PackUnit& unit,
                                             uint32_t lane) {
  return window_from(arguments, unit.begin == 0 ? 0 : fragment_at(arguments, unit.begin), lane);
}

/// A lane's pieces of a unit of the bulk-copy kernels. Each is passed to `visit(piece, offset of
/// the piece in the stage)`. `window` is the lane's own, from one unit to the next.
template <typename Visit>
KVFERRY_HOST_DEVICE void walk_bulk_pieces(const PackArguments& arguments, const PackUnit& unit,
                                          uint32_t lane, FragmentWindow& window, Visit visit) {
  if (unit.begin < window.begin || unit.begin >= window.end) {
    window = window_at(arguments, unit, lane);
  }
  KVFERRY_NO_UNROLL
  while (true) {
    if (overlap(unit, window.mine)) {
      const PackPiece piece = piece_of(arguments, unit, window.mine);
      visit(piece, static_cast<uint32_t>(piece.packed - packed_address(arguments, unit)));
    }
    if (unit.end <= window.end) return;
    window = window_from(arguments, window.first + kTeamLanes, lane);
  }
}

}  // namespace kvferry::gpu
