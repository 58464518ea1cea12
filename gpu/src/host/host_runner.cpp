// SPDX-License-Identifier: Apache-2.0
#include "host/host_runner.hpp"

#include "kvferry/base/streaming_copy.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/tag_sum.hpp"

#include "host/precise_sleep.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <utility>

namespace kvferry::gpu {
namespace {

using Clock = std::chrono::steady_clock;

std::byte* at(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

std::pair<OperationInfo::Kind, const char*> described(PackWay way) {
  switch (way) {
    case PackWay::kGather:
      return {OperationInfo::Kind::kGather, "gather"};
    case PackWay::kScatter:
      return {OperationInfo::Kind::kScatter, "scatter"};
    case PackWay::kSum:
      break;
  }
  return {OperationInfo::Kind::kSum, "sum"};
}

std::uint64_t bytes_of(const PackOperation& pack) {
  return pack.blocks.size() * pack.geometry.packed_bytes;
}

/// Where a gather goes on reading after fragment `i` of the `index`-th block; after the last block,
/// where that block begins.
const std::byte* read_after(const PackOperation& pack, std::size_t index, std::size_t i) {
  const BlockGeometry& geometry = pack.geometry;
  if (i + 1 < geometry.fragments.size()) {
    return at(geometry.fragment_address(i + 1, pack.blocks[index]));
  }
  const std::size_t next = std::min(index + 1, pack.blocks.size() - 1);
  return at(geometry.fragment_address(0, pack.blocks[next]));
}

/// Moves the `index`-th block of the operation, piece by piece, and adds its sum. `streams`: its
/// stores bypass the caches.
void pack_block(const PackOperation& pack, std::size_t index, bool streams) {
  const BlockGeometry& geometry = pack.geometry;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < geometry.fragments.size(); ++i) {
    const std::uint64_t offset = geometry.packed_offsets[i];
    const std::size_t bytes = geometry.fragments[i].bytes;
    std::byte* const in_pool = at(geometry.fragment_address(i, pack.blocks[index]));
    std::byte* const in_packed = at(pack.packed + index * geometry.packed_bytes + offset);
    const bool scatters = pack.way == PackWay::kScatter;
    std::byte* const to = scatters ? in_pool : in_packed;
    const std::span<const std::byte> from(scatters ? in_packed : in_pool, bytes);
    if (pack.way == PackWay::kSum) {
      sum += tag_sum(from, offset);
    } else if (pack.sums != 0) {
      const auto copy = streams ? &copy_rows_streaming_and_sum : &copy_and_sum;
      const std::byte* const next = scatters ? from.data() + bytes : read_after(pack, index, i);
      sum += copy(to, from, offset, next);
    } else if (streams) {
      copy_streaming(to, from.data(), bytes);
    } else {
      std::memcpy(to, from.data(), bytes);
    }
  }
  if (pack.sums == 0) return;
  auto* const sums = reinterpret_cast<std::uint64_t*>(at(pack.sums));
  // Streams may add to one sum, as the threads of a device do.
  std::atomic_ref(sums[index]).fetch_add(sum, std::memory_order_relaxed);
}

/// Moves the blocks of an operation, with the team's help where it pays.
void pack_blocks(CopyTeam& team, const PackOperation& pack) {
  const std::size_t num_blocks = pack.blocks.size();
  // What a gather packs is copied soon.
  const bool streams =
      pack.way == PackWay::kScatter && bytes_of(pack) >= BatchCopy::kStreamingBytes;
  const bool is_shared = bytes_of(pack) >= BatchCopy::kSharedBytes;
  // Threads that have no part left wait for the others, so the parts are small.
  constexpr std::size_t kPartsPerThread = 8;
  const std::size_t num_parts =
      is_shared ? std::min(num_blocks, kPartsPerThread * team.num_threads()) : 1;
  team.run(static_cast<std::uint32_t>(num_parts), [&](std::uint32_t part) {
    const std::size_t end = num_blocks * (part + 1) / num_parts;
    for (std::size_t i = num_blocks * part / num_parts; i < end; ++i) {
      pack_block(pack, i, streams);
    }
    if (streams) finish_streaming();
  });
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
  const bool injects = context_.injector != nullptr;
  if (context_.link.simulated()) {
    sleep_precisely_until(Clock::now() + context_.link.hold_back(copy.number));
    const auto turn = context_.engine(copy.direction).enter(context_.link.rank(copy.number));
    const auto began = Clock::now();
    const auto ends = began + context_.link.occupancy(copy.number, copy.direction, copy.bytes) +
                      (turn.is_first() ? context_.link.stall() : std::chrono::nanoseconds::zero());
    // Half of the bytes move when the copy begins and half when it ends, so that whoever touches
    // the memory too early is found out. An injector has to see all of them at once.
    if (!injects) batch.copy(0, half);
    sleep_precisely_until(ends - (Clock::now() - began));
    if (!injects) batch.copy(half, end);
    sleep_precisely_until(ends);
  } else if (!injects) {
    copy_with(*context_.team, batch, end);
  }
  if (injects) inject(copy, end);
  if (fails) {
    fail("copy " + std::to_string(copy.number) + " (" + to_string(copy.direction) + ", " +
         std::to_string(copy.bytes) + " bytes) failed by request of the test");
  }
}

void HostRunner::inject(const CopyOperation& copy, std::uint64_t end) {
  const bool stores = copy.direction == CopyDirection::kDeviceToHost;
  const auto way = stores ? InjectionWay::kToTier : InjectionWay::kFromTier;
  if (end == copy.bytes) {
    context_.injector->copy(way, copy.runs);
  } else {
    context_.injector->copy_failing(way, copy.runs, end);
  }
}

// A scatter that reads host memory gets what the injector makes of it.
void HostRunner::inject(const PackOperation& pack) {
  const std::uint64_t bytes = bytes_of(pack);
  PackOperation injected = pack;
  if (pack.way == PackWay::kGather) {
    context_.injector->know_blocks(pack.packed, pack.blocks.size(), pack.geometry.packed_bytes);
  } else if (pack.way == PackWay::kScatter && context_.registrations.has(pack.packed)) {
    arrived_.resize(std::max<std::size_t>(arrived_.size(), bytes));
    injected.packed = reinterpret_cast<std::uintptr_t>(arrived_.data());
    const CopyRun run{.destination = injected.packed, .source = pack.packed, .bytes = bytes};
    context_.injector->copy(InjectionWay::kFromTier, {&run, 1});
  }
  pack_blocks(*context_.team, injected);
}

void HostRunner::perform(const PackOperation& pack) {
  const auto [kind, name] = described(pack.way);
  bool fails = intercepted({kind, bytes_of(pack)}).fail;
  KVFERRY_PAUSE_POINT("gpu.host.pack");
  if (KVFERRY_FAULT_POINT("gpu.host.pack")) fails = true;
  const std::shared_lock touching(context_.touching);
  if (context_.loss->quiet()) return;
  if (fails) {
    fail(std::string(name) + " failed by request of the test");
    return;
  }
  if (context_.injector != nullptr) return inject(pack);
  pack_blocks(*context_.team, pack);
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
