// SPDX-License-Identifier: Apache-2.0
#include "expect/transfer_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace kvferry::bench {
namespace {

using gpu::CopyDirection;
using gpu::CopyPath;

// Measured on an H100 (bench/RESULTS.md): 0.67 to 0.69, 0.85 to 0.87 and 0.86 to 0.93 of the link
// with 4 KiB, 8 KiB and more in a row.
constexpr double kKernelShare = 0.9;
constexpr double kKernelHalfBytes = 1024;
// gpu/src/kernels/pack_launch.cpp: CTAs of a gather (for each multiprocessor), of a scatter from
// staging memory and of one from host memory (all), their threads, and bytes that one keeps in
// flight.
constexpr double kGatherCtas = 4;
constexpr double kGatherCtaThreads = 256;
constexpr double kStagedCtas = 64;
constexpr double kStagedCtaThreads = 32;
constexpr double kKernelCtas = 16;
constexpr double kKernelCtaThreads = 256;
constexpr double kCtaBytes = 32.0 * 1024;
// The time of a load and a store of one CTA. Assumed: 1 us each, which is above the latency of idle
// memory (0.5 to 0.8 us). sglang#40278 has 190 GB/s from 4 CTAs of bulk copies on a GB300.
constexpr double kCtaRoundUs = 2;
// transfer/src/copy_lane.hpp: scatters take turns on this many streams, so this many can wait at
// once.
constexpr double kNumScatterStreams = 2;
// A pack both reads and writes the device's memory. A copy engine does one of the two.
constexpr double kPackTouches = 2;
constexpr double kCopyTouches = 1;
// No share of a device is above this: the rest of the device always goes on working.
constexpr double kMostShare = 0.95;
constexpr double kPercent = 100;

double us(double bytes, double gb_per_s) { return bytes / gb_per_s / 1e3; }

double per(std::uint64_t bytes, std::uint64_t part) {
  return std::max(1.0, static_cast<double>(bytes) / static_cast<double>(part));
}

double ctas_gb_per_s(double num_ctas) { return num_ctas * kCtaBytes / kCtaRoundUs / 1e3; }

/// The time that each stage takes for all bytes of a lane.
struct Stages {
  double link_us = 0;    ///< The time of the bytes on the link.
  double start_us = 0;   ///< The time of the copy engine between operations. Adds to link_us.
  double submit_us = 0;  ///< The time of the submitting thread.
  double memory_us = 0;
  double ctas_us = 0;
  double limit_us = 0;
  double fill_us = 0;  ///< The time before the first byte is on the link and after the last one.

  [[nodiscard]] double engine_us() const { return link_us + start_us; }
  [[nodiscard]] Bound engine_bound() const {
    return start_us > link_us ? Bound::kCalls : Bound::kLink;
  }
};

void add_copies_one_by_one(Stages& stages, const CallCosts& costs, const LaneWork& lane) {
  const double runs = per(lane.bytes, lane.run_bytes);
  stages.start_us += runs * costs.copy_start_us;
  stages.submit_us += runs * costs.copy_call_us;
}

void add_batches(Stages& stages, const CallCosts& costs, const LaneWork& lane) {
  const double runs = per(lane.bytes, lane.run_bytes);
  const auto most = static_cast<double>(gpu::kMaxBatchRuns);
  const double calls =
      per(lane.bytes, lane.piece_bytes) * std::ceil(per(lane.piece_bytes, lane.run_bytes) / most);
  stages.start_us += calls * costs.batch_start_us + runs * costs.entry_start_us;
  stages.submit_us += calls * costs.batch_call_us + runs * costs.entry_call_us;
  const bool loads = lane.direction == CopyDirection::kHostToDevice;
  if (loads && lane.run_bytes < costs.slow_entry_bytes) {
    const double slow_us = us(static_cast<double>(lane.bytes), costs.slow_entry_gb_per_s);
    stages.start_us = std::max(stages.start_us, slow_us - stages.link_us);
  }
}

/// Copies of data that is packed already. A piece of more than one copy is a batch call, except on
/// HIP, where the product does not make batch calls of its own accord.
void add_packed_copies(Stages& stages, const DeviceProfile& device, const LaneWork& lane) {
  const bool batch =
      device.family != gpu::DeviceFamily::kHip && lane.piece_bytes >= 2 * lane.run_bytes;
  batch ? add_batches(stages, device.costs(), lane)
        : add_copies_one_by_one(stages, device.costs(), lane);
}

/// A kernel that reads or writes host memory itself.
void add_kernel(Stages& stages, const CallCosts& costs, const LaneWork& lane,
                double kernel_wait_us) {
  const auto fragment = static_cast<double>(lane.fragment_bytes);
  const double pieces = per(lane.bytes, lane.piece_bytes);
  const double share = kKernelShare * fragment / (fragment + kKernelHalfBytes);
  stages.ctas_us = stages.link_us / share;
  if (lane.direction == CopyDirection::kHostToDevice) {
    const auto bytes = static_cast<double>(lane.bytes);
    stages.ctas_us = std::max(stages.ctas_us, us(bytes, ctas_gb_per_s(kKernelCtas)));
  }
  stages.ctas_us += pieces * (costs.launch_start_us + kernel_wait_us);
  stages.submit_us = pieces * costs.launch_call_us;
  stages.fill_us = costs.launch_call_us;
}

void add_staged(Stages& stages, const DeviceProfile& device, const LaneWork& lane,
                double kernel_wait_us) {
  const CallCosts& costs = device.costs();
  const double pieces = per(lane.bytes, lane.piece_bytes);
  add_packed_copies(stages, device, lane);
  // There is an event before the copy and one after it. One of them belongs to the other stream.
  stages.start_us += pieces * costs.wait_us;
  stages.submit_us += pieces * (costs.launch_call_us + 2 * costs.wait_us);
  const bool load = lane.direction == CopyDirection::kHostToDevice;
  const double launches_us =
      pieces * (costs.launch_start_us + kernel_wait_us) / (load ? kNumScatterStreams : 1);
  const auto touched = kPackTouches * static_cast<double>(lane.bytes);
  // The launches of a load wait for multiprocessors, and count below.
  stages.memory_us = us(touched, device.memory_gb_per_s) + (load ? 0 : launches_us);
  double fill_gb_per_s = device.memory_gb_per_s / kPackTouches;
  if (load) {
    stages.ctas_us = us(static_cast<double>(lane.bytes), ctas_gb_per_s(kStagedCtas)) + launches_us;
    fill_gb_per_s = std::min(fill_gb_per_s, ctas_gb_per_s(kStagedCtas));
  }
  stages.fill_us = costs.launch_call_us + costs.launch_start_us + costs.wait_us +
                   us(static_cast<double>(lane.fill_bytes), fill_gb_per_s);
}

Stages stages_of(const DeviceProfile& device, const LaneWork& lane, double link_gb_per_s,
                 double kernel_wait_us) {
  const CallCosts& costs = device.costs();
  const auto bytes = static_cast<double>(lane.bytes);
  Stages stages;
  stages.link_us = us(bytes, link_gb_per_s);
  stages.limit_us = us(bytes, lane.limit_gb_per_s);
  switch (lane.path) {
    case CopyPath::kPerRun:
      add_copies_one_by_one(stages, costs, lane);
      stages.fill_us = costs.copy_call_us;
      break;
    case CopyPath::kBatch:
      add_batches(stages, costs, lane);
      stages.fill_us = costs.batch_call_us;
      break;
    case CopyPath::kKernel:
      add_kernel(stages, costs, lane, kernel_wait_us);
      break;
    case CopyPath::kStaged:
      add_staged(stages, device, lane, kernel_wait_us);
      break;
  }
  return stages;
}

double peak(const DeviceProfile& device, CopyDirection direction) {
  return direction == CopyDirection::kHostToDevice ? device.h2d_gb_per_s : device.d2h_gb_per_s;
}

struct Slowest {
  double us = 0;
  Bound bound = Bound::kLink;
  void add(double time_us, Bound what) {
    if (time_us > us) *this = {time_us, what};
  }
  void add(const Stages& stages) {
    add(stages.engine_us(), stages.engine_bound());
    add(stages.limit_us, Bound::kLimit);
    add(stages.ctas_us, Bound::kMultiprocessors);
  }
};

// One thread submits both directions, and both pack in the same memory.
Expected expect_alone(const DeviceProfile& device, const TransferWork& work) {
  Slowest slowest;
  double submit_us = 0;
  double memory_us = 0;
  double fill_us = 0;
  double bytes = 0;
  for (const LaneWork& lane : work.lanes) {
    double link = peak(device, lane.direction);
    if (work.lanes.size() > 1) link = std::min(link, device.both_gb_per_s / 2);
    const Stages stages = stages_of(device, lane, link, 0);
    slowest.add(stages);
    submit_us += stages.submit_us;
    memory_us += stages.memory_us;
    fill_us = std::max(fill_us, stages.fill_us);
    bytes += static_cast<double>(lane.bytes);
  }
  slowest.add(submit_us, Bound::kCalls);
  slowest.add(memory_us, Bound::kMemory);
  const double time_us = slowest.us + fill_us;
  slowest.add(fill_us, Bound::kWaits);
  return {bytes / time_us / 1e3, slowest.bound};
}

/// The shares of the device that transfers take from the work that runs beside them.
struct Taken {
  double between = 0;          ///< Share of the time in which the work's stream runs gathers.
  double memory = 0;           ///< Share of the device's memory rate.
  double multiprocessors = 0;  ///< Share of the threads that all multiprocessors hold.
};

void take(Taken& taken, const DeviceProfile& device, const LaneWork& lane, double gb_per_s,
          const BesideWork& beside) {
  taken.memory += kCopyTouches * gb_per_s / device.memory_gb_per_s;
  const double all_threads =
      static_cast<double>(device.num_multiprocessors) * device.threads_per_multiprocessor;
  const double pack_share = kPackTouches * gb_per_s / device.memory_gb_per_s;
  if (lane.path == CopyPath::kKernel) {
    taken.multiprocessors += kKernelCtas * kKernelCtaThreads / all_threads;
  }
  if (lane.path != CopyPath::kStaged) return;
  if (lane.direction == CopyDirection::kHostToDevice) {
    taken.memory += pack_share;
    taken.multiprocessors += kStagedCtas * kStagedCtaThreads / all_threads *
                             std::min(1.0, gb_per_s / ctas_gb_per_s(kStagedCtas));
    return;
  }
  if (beside.gathers == BesideWork::Gathers::kBeside) {
    taken.memory += pack_share;
    taken.multiprocessors +=
        pack_share * kGatherCtas * kGatherCtaThreads / device.threads_per_multiprocessor;
    return;
  }
  taken.between += pack_share + device.costs().launch_start_us / beside.iteration_us;
}

double slow_down_percent(const Taken& taken, gpu::CoRunKind kind) {
  const double beside = kind == gpu::CoRunKind::kStream ? taken.memory : taken.multiprocessors;
  const auto left = [](double share) { return 1 - std::min(share, kMostShare); };
  return kPercent * (1 / (left(taken.between) * left(beside)) - 1);
}

struct Rate {
  double gb_per_s = 0;
  Bound bound = Bound::kLink;
};

Rate steady_rate(const DeviceProfile& device, const LaneWork& lane, const BesideWork& beside) {
  const Stages stages = stages_of(device, lane, peak(device, lane.direction), beside.launch_us / 2);
  Slowest slowest;
  slowest.add(stages);
  slowest.add(stages.submit_us, Bound::kCalls);
  slowest.add(stages.memory_us, Bound::kMemory);
  const double gb_per_s = static_cast<double>(lane.bytes) / slowest.us / 1e3;
  // Little's law: the bytes under way, divided by the time that they are under way.
  const double window_us =
      beside.held_us + std::max(us(lane.unit_bytes, gb_per_s) - beside.iteration_us / 2, 0.0);
  const double by_window = window_us > 0 ? lane.window_bytes / window_us / 1e3 : gb_per_s;
  if (by_window < gb_per_s) return {by_window, Bound::kWaits};
  return {gb_per_s, slowest.bound};
}

/// Two directions share the rate that the link has for both together.
void share_link(Rate& one, Rate& other, double both_gb_per_s) {
  if (one.gb_per_s + other.gb_per_s <= both_gb_per_s) return;
  Rate& less = one.gb_per_s < other.gb_per_s ? one : other;
  Rate& more = &less == &one ? other : one;
  if (less.gb_per_s > both_gb_per_s / 2) less = {both_gb_per_s / 2, Bound::kLink};
  more = {both_gb_per_s - less.gb_per_s, Bound::kLink};
}

Expected expect_beside(const DeviceProfile& device, const TransferWork& work,
                       const BesideWork& beside) {
  std::vector<Rate> rates;
  for (const LaneWork& lane : work.lanes) {
    rates.push_back(steady_rate(device, lane, beside));
  }
  if (rates.size() > 1) share_link(rates[0], rates[1], device.both_gb_per_s);
  Taken taken;
  Expected expected;
  double most = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    take(taken, device, work.lanes[i], rates[i].gb_per_s, beside);
    expected.gb_per_s += rates[i].gb_per_s;
    if (rates[i].gb_per_s > most) expected.bound = rates[i].bound;
    most = std::max(most, rates[i].gb_per_s);
  }
  expected.slow_down_percent = slow_down_percent(taken, beside.kind);
  return expected;
}

}  // namespace

const char* to_string(Bound bound) {
  switch (bound) {
    case Bound::kLink:
      return "link";
    case Bound::kCalls:
      return "calls";
    case Bound::kMemory:
      return "memory";
    case Bound::kMultiprocessors:
      return "SMs";
    case Bound::kLimit:
      return "limit";
    case Bound::kWaits:
      return "waits";
  }
  return "unknown bound";
}

Expected expect(const DeviceProfile& device, const TransferWork& work) {
  return work.beside ? expect_beside(device, work, *work.beside) : expect_alone(device, work);
}

}  // namespace kvferry::bench
