// SPDX-License-Identifier: Apache-2.0
#include "host/host_runner.hpp"

#include "kvferry/base/test_hooks.hpp"

#include "host/precise_sleep.hpp"

#include <chrono>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace kvferry::gpu {
namespace {

using Clock = std::chrono::steady_clock;

std::byte* at(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

// Of a device that is gone nothing runs any more; its records are failed without being finished.
void HostRunner::run(const HostOperation& operation) {
  if (context_.loss->quiet()) return;
  std::visit([this](const auto& op) { perform(op); }, operation);
}

void HostRunner::perform(const CopyOperation& copy) {
  using Kind = OperationInfo::Kind;
  const bool to_host = copy.direction == CopyDirection::kDeviceToHost;
  bool fails = intercepted({to_host ? Kind::kCopyD2H : Kind::kCopyH2D, copy.bytes}).fail;
  KVFERRY_PAUSE_POINT("gpu.host.copy");
  if (KVFERRY_FAULT_POINT("gpu.host.copy")) fails = true;
  if (context_.link.fails(copy.number)) fails = true;

  const std::shared_lock touching(context_.touching);
  if (context_.loss->quiet()) return;
  // A copy that fails leaves its second half unwritten.
  const std::uint64_t half = copy.bytes / 2;
  const std::uint64_t end = fails ? half : copy.bytes;
  const BatchCopy batch(copy.runs, copy.bytes);
  if (context_.link.simulated()) {
    sleep_precisely_until(Clock::now() + context_.link.hold_back(copy.number));
    const auto turn = context_.engine(copy.direction).enter(context_.link.rank(copy.number));
    const auto began = Clock::now();
    const auto ends = began + context_.link.occupancy(copy.number, copy.direction, copy.bytes) +
                      (turn.is_first() ? context_.link.stall() : std::chrono::nanoseconds::zero());
    // Half of the bytes move when the copy begins and half when it ends, so that whoever touches
    // the memory too early is found out.
    batch.copy(0, half);
    sleep_precisely_until(ends - (Clock::now() - began));
    batch.copy(half, end);
    sleep_precisely_until(ends);
  } else {
    copy_with(*context_.team, batch, end);
  }
  if (fails) {
    fail("copy " + std::to_string(copy.number) + " (" + to_string(copy.direction) + ", " +
         std::to_string(copy.bytes) + " bytes) failed by request of the test");
  }
}

void HostRunner::perform(const PackOperation& pack) {
  using Kind = OperationInfo::Kind;
  const bool gathers = pack.way == PackWay::kGather;
  const BlockGeometry& geometry = pack.geometry;
  const std::uint64_t bytes = pack.blocks.size() * geometry.packed_bytes;
  bool fails = intercepted({gathers ? Kind::kGather : Kind::kScatter, bytes}).fail;
  KVFERRY_PAUSE_POINT("gpu.host.pack");
  if (KVFERRY_FAULT_POINT("gpu.host.pack")) fails = true;
  const std::shared_lock touching(context_.touching);
  if (context_.loss->quiet()) return;
  if (fails) {
    fail(std::string(gathers ? "gather" : "scatter") + " failed by request of the test");
    return;
  }
  std::uintptr_t packed_block = pack.packed;
  for (const BlockId block : pack.blocks) {
    for (std::size_t i = 0; i < geometry.fragments.size(); ++i) {
      std::byte* const in_pool = at(geometry.fragment_address(i, block));
      std::byte* const in_packed = at(packed_block + geometry.packed_offsets[i]);
      std::memcpy(gathers ? in_packed : in_pool, gathers ? in_pool : in_packed,
                  geometry.fragments[i].bytes);
    }
    packed_block += geometry.packed_bytes;
  }
}

void HostRunner::perform(const FillOperation& fill) {
  bool fails = intercepted({OperationInfo::Kind::kFill, fill.bytes}).fail;
  KVFERRY_PAUSE_POINT("gpu.host.fill");
  if (KVFERRY_FAULT_POINT("gpu.host.fill")) fails = true;
  const std::shared_lock touching(context_.touching);
  if (context_.loss->quiet()) return;
  if (fails) {
    fail("fill failed by request of the test");
    return;
  }
  std::memset(at(fill.address), fill.value, fill.bytes);
}

void HostRunner::perform(const CallOperation& call) { call.call(); }

void HostRunner::perform(const RecordOperation& record) {
  record.record->finish(std::exchange(failure_, std::string()));
}

void HostRunner::perform(const WaitOperation& wait) { wait.record->wait_reached(); }

OperationVerdict HostRunner::intercepted(const OperationInfo& info) {
  if (!context_.interceptor) return {};
  OperationVerdict verdict = context_.interceptor(info);
  if (verdict.delay > std::chrono::nanoseconds::zero()) {
    sleep_precisely_until(Clock::now() + verdict.delay);
  }
  if (verdict.loses) {
    std::unique_lock touching(context_.touching, std::defer_lock);
    if (*verdict.loses == LostMemory::kQuiet) touching.lock();
    context_.loss->lose(*verdict.loses, "by request of the test");
    verdict.fail = true;
  }
  return verdict;
}

void HostRunner::fail(const std::string& why) {
  if (failure_.empty()) failure_ = why;
}

}  // namespace kvferry::gpu
