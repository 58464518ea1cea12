// SPDX-License-Identifier: Apache-2.0
#include "measure/pageable_route.hpp"

#include "kvferry/gpu/pageable_copy.hpp"

#include <vector>

namespace kvferry::bench {
namespace {

class PageableRoute final : public CopyRoute {
 public:
  PageableRoute(gpu::Device& device, const FragmentSets& sets, const RouteEnds& ends)
      : direction_(ends.direction), device_(device), stream_(device.create_stream()) {
    for (std::uint32_t set = 0; set < sets.num_sets; ++set) {
      runs_.push_back(merged_runs(sets, set, ends.direction, ends.pool, ends.host));
    }
  }
  void submit(std::uint32_t set) override {
    for (const gpu::CopyRun& run : runs_[set]) {
      gpu::copy_pageable(device_, *stream_, direction_, run);
    }
  }
  gpu::Stream& first() override { return *stream_; }
  gpu::Stream& last() override { return *stream_; }
  [[nodiscard]] std::uint64_t descriptors_per_set() const override { return runs_.front().size(); }

 private:
  const gpu::CopyDirection direction_;
  gpu::Device& device_;
  std::vector<std::vector<gpu::CopyRun>> runs_;
  std::unique_ptr<gpu::Stream> stream_;
};

}  // namespace

std::unique_ptr<CopyRoute> make_pageable_route(gpu::Device& device, const FragmentSets& sets,
                                               const RouteEnds& ends) {
  return std::make_unique<PageableRoute>(device, sets, ends);
}

}  // namespace kvferry::bench
