// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/tag_sum.hpp"

#include "facts.hpp"
#include "kernels/pack_launch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace kvferry::smoke {
namespace {

using gpu::CopyDirection;
using gpu::CopyRun;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kBlockBytes = 16384;
constexpr std::uint32_t kNumBlocks = 64;
constexpr std::size_t kPacked = kNumBlocks * kBlockBytes;
constexpr std::chrono::seconds kMostHeld{5};

/// A pool in device memory, and the kernels that pack it. The packed bytes are byte_at(), in device
/// memory and in registered host memory.
class PackRig {
 public:
  explicit PackRig(SmokeDevice& device)
      : device_(device),
        stream_(device.make_stream()),
        pool_(device.require(device.api().allocate(kPacked), "allocate a pool")),
        table_(device.require(device.api().allocate(4096), "allocate a table")),
        geometry_(gpu::make_block_geometry({{pool_, kBlockBytes, kBlockBytes}}, kNumBlocks)),
        module_(device.load_kernels()) {
    const auto entries = gpu::fragment_table(geometry_);
    const auto host = device.host();
    for (std::size_t i = 0; i < kPacked; ++i) host[i] = byte_at(i);
    std::memcpy(host.data() + kPacked, entries.data(), sizeof(entries[0]) * entries.size());
    copy(CopyDirection::kHostToDevice, {device.memory(), device.alias(), kPacked});
    copy(CopyDirection::kHostToDevice, {table_, device.alias() + kPacked, 4096});
    for (std::uint32_t i = 0; i < kNumBlocks; ++i) blocks_.emplace_back(i * 37 % kNumBlocks);
  }

  void launch(gpu::PackWay way, gpu::PackKernel kernel, std::uintptr_t packed,
              std::uintptr_t sums) {
    const gpu::PackDevice pack_device = {16, gpu::BulkCopy::kYes};
    const auto plan =
        gpu::plan_pack(geometry_, kNumBlocks, packed, way, pack_device, {.kernel = kernel},
                       sums == 0 ? gpu::PackSums::kNo : gpu::PackSums::kYes);
    const auto function = device_.require(
        device_.api().function(module_, plan.kernel, plan.shared_bytes), "find the kernel");
    auto arguments = gpu::pack_arguments(geometry_, table_, blocks_, packed, sums);
    device_.require(
        device_.api().launch(
            function, {{plan.num_ctas, 1, 1}, {plan.threads_per_cta, 1, 1}, plan.shared_bytes},
            &arguments, stream_),
        std::string("launch ") + plan.kernel);
    device_.settle(stream_);
  }
  void zero(std::uintptr_t address, std::uint64_t bytes) {
    device_.require(device_.api().fill(address, 0, bytes, stream_), "fill");
  }
  void copy(CopyDirection direction, const CopyRun& run) {
    device_.require(device_.api().copy(direction, run, stream_), "copy in or out");
    device_.settle(stream_);
  }

 private:
  SmokeDevice& device_;
  gpu::StreamHandle stream_;
  std::uintptr_t pool_;
  std::uintptr_t table_;
  gpu::BlockGeometry geometry_;
  gpu::ModuleHandle module_;
  std::vector<BlockId> blocks_;
};

/// Scatters the packed bytes into a pool and gathers them into device memory.
Fact scatter_and_gather(SmokeDevice& device, gpu::PackKernel kernel, bool from_host) {
  PackRig rig(device);
  const std::uintptr_t memory = device.memory();
  rig.launch(gpu::PackWay::kScatter, kernel, from_host ? device.alias() : memory, 0);
  rig.zero(memory, kPacked);
  rig.launch(gpu::PackWay::kGather, kernel, memory, 0);
  std::memset(device.host().data(), 0, kPacked);
  rig.copy(CopyDirection::kDeviceToHost, {device.alias(), memory, kPacked});
  const std::string wrong = first_wrong(device.host().first(kPacked));
  return {wrong.empty(), wrong.empty() ? "every byte right" : wrong, 0, ""};
}

/// Each block is summed by a scatter, a gather and alone, into one number: three times its sum.
Fact sums_of_blocks(SmokeDevice& device) {
  constexpr auto kVector = gpu::PackKernel::kVector;
  constexpr std::uint64_t kSumBytes = kNumBlocks * sizeof(std::uint64_t);
  PackRig rig(device);
  const std::uintptr_t memory = device.memory();
  const std::uintptr_t sums = device.require(device.api().allocate(kSumBytes), "allocate sums");
  rig.zero(sums, kSumBytes);
  rig.launch(gpu::PackWay::kScatter, kVector, memory, sums);
  rig.launch(gpu::PackWay::kGather, kVector, memory, sums);
  rig.launch(gpu::PackWay::kSum, kVector, 0, sums);
  std::vector<std::uint64_t> expected;
  for (std::size_t i = 0; i < kNumBlocks; ++i) {
    const auto block = device.host().subspan(i * kBlockBytes, kBlockBytes);
    expected.push_back(3 * gpu::tag_sum(std::as_bytes(block), 0));
  }
  rig.copy(CopyDirection::kDeviceToHost, {device.alias(), sums, kSumBytes});
  std::vector<std::uint64_t> found(kNumBlocks);
  std::memcpy(found.data(), device.host().data(), kSumBytes);
  const auto wrong = std::mismatch(found.begin(), found.end(), expected.begin()).first;
  if (wrong == found.end()) return {true, "every sum right", 0, ""};
  return {false, "the sum of block " + std::to_string(wrong - found.begin()) + " is wrong", 0, ""};
}

struct Held {
  std::atomic<bool> running{false};
  std::atomic<bool> released{false};
};

void hold(void* data) {
  auto& held = *static_cast<Held*>(data);
  held.running = true;
  const auto end = Clock::now() + kMostHeld;
  while (!held.released && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

using LaunchHostFunction = int (*)(void*, void (*)(void*), void*);

/// Whether `call` returns while a stream is held, and after how long.
Fact while_held(SmokeDevice& device, LaunchHostFunction launch, const std::function<void()>& call) {
  const auto stream = device.make_stream();
  auto* const held = new Held;  // the driver may still run it when the fact fails
  const int code = launch(reinterpret_cast<void*>(stream), &hold, held);
  if (code != 0) throw std::runtime_error("a host function is refused: " + std::to_string(code));
  while (!held->running) std::this_thread::yield();
  std::atomic<bool> returned{false};
  // So that a call that waits is waited for a moment only.
  std::thread releaser([&] {
    const auto end = Clock::now() + std::chrono::milliseconds(500);
    while (!returned && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    held->released = true;
  });
  const auto begin = Clock::now();
  std::string why;
  try {
    call();
  } catch (const std::exception& error) {
    why = error.what();
  }
  const bool waited = held->released;
  returned = true;
  releaser.join();
  device.settle(stream);
  if (!why.empty()) throw std::runtime_error(why);
  const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
  return {true, waited ? "it WAITS for the held stream" : "it does not wait", took.count(), "ms",
          true};
}

}  // namespace

void settle_kernels(FactLog& log, SmokeDevice& device, Effort /*effort*/) {
  device.make_memory();
  log.check("vector kernels, packed in device memory",
            [&] { return scatter_and_gather(device, gpu::PackKernel::kVector, false); });
  log.check("vector kernels, packed in registered host memory",
            [&] { return scatter_and_gather(device, gpu::PackKernel::kVector, true); });
  log.check("vector kernels, sums", [&] { return sums_of_blocks(device); });
}

void settle_bulk(FactLog& log, SmokeDevice& device, Effort /*effort*/) {
  const bool has = device.api().traits().compute_capability >= 90;
  const Fact none = {true, "the device has no bulk copies", 0, ""};
  device.make_memory();
  log.check("bulk kernels, packed in device memory",
            [&] { return has ? scatter_and_gather(device, gpu::PackKernel::kBulk, false) : none; });
  log.check("F9 bulk kernels, packed in registered host memory",
            [&] { return has ? scatter_and_gather(device, gpu::PackKernel::kBulk, true) : none; });
}

void settle_held(FactLog& log, SmokeDevice& device, Effort /*effort*/) {
  device.make_memory();
  const bool cuda = device.api().traits().kind == gpu::BackendKind::kCuda;
  const auto launch = reinterpret_cast<LaunchHostFunction>(
      device.symbol(cuda ? "cuLaunchHostFunc" : "hipLaunchHostFunc"));
  log.check("F3 a host function without a current context", [&] {
    const auto stream = device.make_stream();
    static Held held;
    held.released = true;
    int code = 0;
    std::thread([&] { code = launch(reinterpret_cast<void*>(stream), &hold, &held); }).join();
    device.settle(stream);
    return Fact{true, code == 0 ? "is taken" : "is refused: " + device.api().describe(code), 0, "",
                true};
  });
  log.check("while held: a copy on another stream", [&] {
    return while_held(device, launch, [&] {
      const auto stream = device.make_stream();
      const CopyRun run = {device.memory(), device.alias(), 4096};
      device.require(device.api().copy(CopyDirection::kHostToDevice, run, stream), "copy");
      device.settle(stream);
    });
  });
  std::uintptr_t memory = 0;
  log.check("while held: allocating", [&] {
    return while_held(device, launch,
                      [&] { memory = device.require(device.api().allocate(4096), "allocate"); });
  });
  log.check("while held: freeing", [&] {
    return while_held(device, launch, [&] { device.require(device.api().free(memory), "free"); });
  });
  log.check("F2 while held: loading a module and finding a kernel", [&] {
    return while_held(device, launch, [&] {
      const auto module = device.load_kernels();
      static_cast<void>(
          device.require(device.api().function(module, "kvferry_gather", 0), "find the kernel"));
    });
  });
}

const std::vector<FactGroup>& fact_groups() {
  static const std::vector<FactGroup> kGroups = {
      {"device", &settle_device}, {"copies", &settle_copies}, {"kernels", &settle_kernels},
      {"held", &settle_held},     {"bulk", &settle_bulk},     {"legacy", &settle_legacy},
      {"border", &settle_border}};
  return kGroups;
}

}  // namespace kvferry::smoke
