// SPDX-License-Identifier: Apache-2.0
#include "measure/host_copy_route.hpp"

#include "kvferry/base/streaming_copy.hpp"

#include "measure/parallel_parts.hpp"

#include <cstring>
#include <thread>

namespace kvferry::bench {
namespace {

void* at(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

class HostCopyRoute final : public CopyRoute {
 public:
  HostCopyRoute(gpu::Device& device, const HostCopy& copy, const FragmentSets& sets,
                const RouteEnds& ends)
      : copy_(copy), stream_(device.view_stream(0)) {
    for (std::uint32_t set = 0; set < sets.num_sets; ++set) {
      const auto runs = merged_runs(sets, set, ends.direction, ends.pool, ends.host);
      if (set == 0) descriptors_ = runs.size();
      for (const gpu::CopyRun& run : runs) add(run);
    }
  }
  void submit(std::uint32_t set) override {
    if (set != 0) return;
    std::vector<std::thread> threads;
    for (std::uint32_t t = 1; t < copy_.num_threads; ++t) {
      threads.emplace_back([this, t] { copy_share(t); });
    }
    copy_share(0);
    for (std::thread& thread : threads) thread.join();
  }
  // A view of the host back end records an event as soon as it is asked to: here before and after
  // submit().
  gpu::Stream& first() override { return *stream_; }
  gpu::Stream& last() override { return *stream_; }
  [[nodiscard]] std::uint64_t descriptors_per_set() const override { return descriptors_; }

 private:
  /// Adds the copy in pieces that several threads can share. The copy of a link is one run.
  void add(gpu::CopyRun run) {
    constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20U;
    while (run.bytes > kPieceBytes) {
      pieces_.push_back({run.destination, run.source, kPieceBytes});
      run = {run.destination + kPieceBytes, run.source + kPieceBytes, run.bytes - kPieceBytes};
    }
    pieces_.push_back(run);
  }
  void copy_share(std::uint32_t thread) const {
    const std::size_t begin = pieces_.size() * thread / copy_.num_threads;
    const std::size_t end = pieces_.size() * (thread + 1) / copy_.num_threads;
    for (std::size_t i = begin; i < end; ++i) {
      const gpu::CopyRun& piece = pieces_[i];
      if (copy_.kind == HostCopyKind::kStreaming) {
        copy_streaming(at(piece.destination), at(piece.source), piece.bytes);
      } else {
        std::memcpy(at(piece.destination), at(piece.source), piece.bytes);
      }
    }
    if (copy_.kind == HostCopyKind::kStreaming) finish_streaming();
  }

  const HostCopy copy_;
  std::vector<gpu::CopyRun> pieces_;
  std::uint64_t descriptors_ = 0;
  std::unique_ptr<gpu::Stream> stream_;
};

}  // namespace

const char* to_string(HostCopyKind kind) {
  return kind == HostCopyKind::kMemcpy ? "memcpy" : "streaming";
}

std::vector<HostCopy> host_copies(const std::vector<std::uint32_t>& num_threads) {
  std::vector<HostCopy> copies;
  for (const HostCopyKind kind : {HostCopyKind::kMemcpy, HostCopyKind::kStreaming}) {
    for (const std::uint32_t threads : num_threads) copies.push_back({kind, threads});
  }
  return copies;
}

std::vector<std::uint32_t> default_host_threads() {
  const std::uint32_t all = most_copy_threads();
  return all > 1 ? std::vector<std::uint32_t>{1, all} : std::vector<std::uint32_t>{1};
}

std::unique_ptr<CopyRoute> make_host_copy_route(gpu::Device& device, const HostCopy& copy,
                                                const FragmentSets& sets, const RouteEnds& ends) {
  return std::make_unique<HostCopyRoute>(device, copy, sets, ends);
}

}  // namespace kvferry::bench
