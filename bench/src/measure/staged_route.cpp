// SPDX-License-Identifier: Apache-2.0
#include "measure/staged_route.hpp"

#include <algorithm>
#include <span>

namespace kvferry::bench {
namespace {

std::uint64_t pieces(std::uint64_t count, std::uint64_t per_piece) {
  return (count + per_piece - 1) / per_piece;
}

}  // namespace

StagedRoute::StagedRoute(gpu::Device& device, const FragmentSets& sets, const RouteEnds& ends,
                         std::uint64_t piece_bytes)
    : ends_(ends),
      sets_(sets),
      geometry_(gpu::make_block_geometry({{ends.pool, sets.fragment_bytes, sets.fragment_bytes}},
                                         sets.pool_fragments)),
      fragments_per_piece_(std::max<std::uint64_t>(piece_bytes / sets.fragment_bytes, 1)),
      pieces_per_set_(static_cast<std::uint32_t>(pieces(sets.count, fragments_per_piece_))),
      packed_(device.allocate(sets.total_bytes())),
      pack_stream_(device.create_stream()),
      copy_stream_(device.create_stream()) {
  device.prepare(geometry_);
  for (std::uint32_t i = 0; i < pieces_per_set_ * sets.num_sets; ++i) {
    handed_over_.push_back(device.create_event());
  }
}

void StagedRoute::submit(std::uint32_t set) {
  const std::uint64_t end = (std::uint64_t{set} + 1) * sets_.count;
  std::uint64_t first = std::uint64_t{set} * sets_.count;
  for (std::uint32_t i = 0; i < pieces_per_set_; ++i) {
    const std::uint64_t count = std::min(fragments_per_piece_, end - first);
    stores() ? store(set * pieces_per_set_ + i, first, count)
             : load(set * pieces_per_set_ + i, first, count);
    first += count;
  }
}

gpu::Stream& StagedRoute::first() { return stores() ? *pack_stream_ : *copy_stream_; }
gpu::Stream& StagedRoute::last() { return stores() ? *copy_stream_ : *pack_stream_; }

void StagedRoute::store(std::uint32_t piece, std::uint64_t first, std::uint64_t count) {
  pack_stream_->gather(geometry_, std::span(sets_.places).subspan(first, count),
                       packed_->address() + first * sets_.fragment_bytes);
  pack_stream_->record(*handed_over_[piece]);
  copy_stream_->wait(*handed_over_[piece]);
  copy(first, count);
}

void StagedRoute::load(std::uint32_t piece, std::uint64_t first, std::uint64_t count) {
  copy(first, count);
  copy_stream_->record(*handed_over_[piece]);
  pack_stream_->wait(*handed_over_[piece]);
  pack_stream_->scatter(geometry_, std::span(sets_.places).subspan(first, count),
                        packed_->address() + first * sets_.fragment_bytes);
}

void StagedRoute::copy(std::uint64_t first, std::uint64_t count) {
  const std::uintptr_t packed = packed_->address() + first * sets_.fragment_bytes;
  const std::uintptr_t host = ends_.host + first * sets_.fragment_bytes;
  const gpu::CopyRun run{stores() ? host : packed, stores() ? packed : host,
                         count * sets_.fragment_bytes};
  copy_stream_->copy(ends_.direction, {&run, 1}, gpu::CopyCall::kPerRun);
}

}  // namespace kvferry::bench
