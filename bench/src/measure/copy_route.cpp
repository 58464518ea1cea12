// SPDX-License-Identifier: Apache-2.0
#include "measure/copy_route.hpp"

#include "kvferry/gpu/block_geometry.hpp"

#include "measure/staged_route.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::bench {
namespace {

/// The paths kPerRun and kBatch.
class CallRoute final : public CopyRoute {
 public:
  CallRoute(gpu::Device& device, gpu::CopyCall call, const FragmentSets& sets,
            const RouteEnds& ends)
      : direction_(ends.direction), call_(call), stream_(device.create_stream()) {
    for (std::uint32_t set = 0; set < sets.num_sets; ++set) {
      runs_.push_back(merged_runs(sets, set, ends.direction, ends.pool, ends.host));
    }
  }
  void submit(std::uint32_t set) override {
    std::span<const gpu::CopyRun> rest(runs_[set]);
    while (!rest.empty()) {
      const auto part = rest.first(std::min(rest.size(), gpu::kMaxBatchRuns));
      stream_->copy(direction_, part, call_);
      rest = rest.subspan(part.size());
    }
  }
  gpu::Stream& first() override { return *stream_; }
  gpu::Stream& last() override { return *stream_; }
  [[nodiscard]] std::uint64_t descriptors_per_set() const override { return runs_.front().size(); }

 private:
  const gpu::CopyDirection direction_;
  const gpu::CopyCall call_;
  std::vector<std::vector<gpu::CopyRun>> runs_;
  std::unique_ptr<gpu::Stream> stream_;
};

/// The path kKernel: gather and scatter straight to and from host memory.
class KernelRoute final : public CopyRoute {
 public:
  KernelRoute(gpu::Device& device, const FragmentSets& sets, const RouteEnds& ends)
      : ends_(ends),
        sets_(sets),
        geometry_(gpu::make_block_geometry({{ends.pool, sets.fragment_bytes, sets.fragment_bytes}},
                                           sets.pool_fragments)),
        stream_(device.create_stream()) {
    device.prepare(geometry_);
  }
  void submit(std::uint32_t set) override {
    const auto places =
        std::span(sets_.places).subspan(std::size_t{set} * sets_.count, sets_.count);
    const std::uintptr_t packed = ends_.host + set * sets_.set_bytes();
    if (ends_.direction == gpu::CopyDirection::kDeviceToHost) {
      stream_->gather(geometry_, places, packed);
    } else {
      stream_->scatter(geometry_, places, packed);
    }
  }
  gpu::Stream& first() override { return *stream_; }
  gpu::Stream& last() override { return *stream_; }
  [[nodiscard]] std::uint64_t descriptors_per_set() const override { return sets_.count; }

 private:
  const RouteEnds ends_;
  const FragmentSets& sets_;
  const gpu::BlockGeometry geometry_;
  std::unique_ptr<gpu::Stream> stream_;
};

}  // namespace

std::unique_ptr<CopyRoute> make_route(gpu::Device& device, gpu::CopyPath path,
                                      const FragmentSets& sets, const RouteEnds& ends,
                                      std::uint64_t staged_piece_bytes) {
  switch (path) {
    case gpu::CopyPath::kPerRun:
      return std::make_unique<CallRoute>(device, gpu::CopyCall::kPerRun, sets, ends);
    case gpu::CopyPath::kBatch:
      return std::make_unique<CallRoute>(device, gpu::CopyCall::kBatch, sets, ends);
    case gpu::CopyPath::kKernel:
      return std::make_unique<KernelRoute>(device, sets, ends);
    case gpu::CopyPath::kStaged:
      break;
  }
  return std::make_unique<StagedRoute>(device, sets, ends, staged_piece_bytes);
}

}  // namespace kvferry::bench
