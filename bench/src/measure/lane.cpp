// SPDX-License-Identifier: Apache-2.0
#include "measure/lane.hpp"

#include "measure/pageable_route.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvferry::bench {
namespace {

std::unique_ptr<CopyRoute> route_for(gpu::Device& device, const LaneOptions& options,
                                     const CopyWay& way, const FragmentSets& sets,
                                     const RouteEnds& ends) {
  if (way.host_copy) return make_host_copy_route(device, *way.host_copy, sets, ends);
  if (options.host_memory == HostMemoryKind::kPageable) {
    return make_pageable_route(device, sets, ends);
  }
  return make_route(device, way.path, sets, ends, options.staged_piece_bytes);
}

}  // namespace

Lane::Lane(gpu::Device& device, FragmentSets sets, const LaneOptions& options)
    : options_(options),
      sets_(std::move(sets)),
      pool_(device, sets_.pool_bytes()),
      host_(device, sets_.total_bytes(), options.host_memory, options.numa_node) {
  const RouteEnds ends{options_.direction, pool_.address(), host_.device_address()};
  for (const CopyWay& way : options_.ways) {
    routes_.push_back(route_for(device, options_, way, sets_, ends));
  }
}

// The pool always holds the pattern from end to end, so a fragment's bytes follow from its place.
void Lane::prepare(PatternKey key) {
  if (options_.direction == gpu::CopyDirection::kDeviceToHost) {
    pool_.write(0, pool_.size_bytes(), key);
    return;
  }
  write_pattern(host_pieces(), key);
}

void Lane::check(PatternKey key, Verifier& verifier) {
  options_.direction == gpu::CopyDirection::kDeviceToHost ? check_host(key, verifier)
                                                          : check_pool(key, verifier);
}

void Lane::check_host(PatternKey key, Verifier& verifier) {
  verifier.check(host_pieces(), key, "fragment in host memory");
}

PatternPieces Lane::host_pieces() const {
  return {
      sets_.places.size(), [this](std::size_t i) {
        const std::uint64_t size = sets_.fragment_bytes;
        return PatternPiece{host_.bytes().subspan(i * size, size), sets_.places[i].value() * size};
      }};
}

void Lane::check_pool(PatternKey key, Verifier& verifier) {
  std::vector<BlockId> places = sets_.places;
  std::sort(places.begin(), places.end());
  pool_.check_pieces(0, sets_.fragment_bytes, places, key, verifier, "fragment in device memory");
}

}  // namespace kvferry::bench
