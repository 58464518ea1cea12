// SPDX-License-Identifier: Apache-2.0
// Ends a process while stores and loads are in flight on a stand-in driver, which goes down in exit
// handlers of its own as the vendors' do. Arguments: cuda or hip; how to end.
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "stand_ins.hpp"

#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

namespace {

using namespace kvferry;  // NOLINT(google-build-using-namespace)

constexpr std::uint32_t kNumBlocks = 64;
constexpr std::uint64_t kBlockBytes = 4096;

/// An engine at work.
struct Work {
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<gpu::DeviceBuffer> pool;
  std::unique_ptr<cpu_tier::Arena> arena;
  std::unique_ptr<gpu::Stream> compute;
  std::unique_ptr<transfer::TransferEngine> engine;
};

Work start(bool hip) {
  fakes::FakeControl& control = transfer::control_of(hip ? KVFERRY_FAKE_HIP : KVFERRY_FAKE_CUDA);
  control.go_down_at_exit();
  Work work;
  work.device = hip ? transfer::hip_stand_in() : transfer::cuda_stand_in();
  work.pool = work.device->allocate(kNumBlocks * kBlockBytes);
  work.arena = std::make_unique<cpu_tier::Arena>(*work.device, kBlockBytes, kNumBlocks);
  work.compute = work.device->create_stream();
  const std::vector<gpu::Fragment> fragments = {
      {work.pool->address(), kBlockBytes, kBlockBytes / 4},
      {work.pool->address() + kBlockBytes / 2, kBlockBytes, kBlockBytes / 4}};
  work.engine = std::make_unique<transfer::TransferEngine>(
      *work.device, std::vector{gpu::make_block_geometry(fragments, kNumBlocks)}, *work.arena,
      transfer::TransferOptions{.staging_bytes = kNumBlocks * kBlockBytes,
                                .piece_bytes = 4 * kBlockBytes,
                                .copy_path = gpu::CopyPath::kStaged,
                                .load_staging_bytes = 16 * kBlockBytes});
  // What is submitted from here on takes its time, so that the end comes first.
  control.slow_down(std::chrono::milliseconds(20));
  std::vector<BlockSlot> stores;
  std::vector<BlockSlot> loads;
  for (std::uint32_t i = 0; i < kNumBlocks / 2; ++i) {
    stores.push_back({BlockId(i), SlotId(i)});
    loads.push_back({BlockId(kNumBlocks / 2 + i), SlotId(kNumBlocks / 2 + i)});
  }
  if (work.engine->gather(*work.compute, TransferId(1), SlabClassId(0), stores) == 0) std::abort();
  static_cast<void>(work.engine->seal(TransferId(1)));
  work.engine->load(TransferId(2), SlabClassId(0), loads, work.engine->fence(*work.compute));
  while (work.engine->stats().in_flight_bytes == 0) {
  }
  if (work.engine->wait_idle(std::chrono::nanoseconds(0))) std::abort();
  return work;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool hip = std::string_view(argv[1]) == "hip";
  const std::string_view way = argv[2];
  if (way == "return") {
    const Work work = start(hip);  // Destroyed here, with the driver well.
    return 0;
  }
  if (way == "static") {
    static Work work;  // Before the driver: destroyed after it went down.
    work = start(hip);
    return 0;
  }
  if (way == "exit") {
    const Work work = start(hip);
    std::exit(0);  // NOLINT(concurrency-mt-unsafe): what is tested; nothing of ours is destroyed
  }
  return 2;
}
