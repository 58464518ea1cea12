// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/gpu/injection.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvferry::gpu {

/// The order in which copies of different streams in one direction cross the link.
enum class LinkOrder : std::uint8_t {
  /// The copy that was submitted first, among those whose turn has come in their stream. A copy
  /// that still waits for an event does not block others.
  kFifo,
  /// A random one, drawn from `seed`. Each copy is also delayed up to 100 us so that others can
  /// overtake it. The order within a stream stays.
  kShuffled
};

/// The simulated link of the host back end. By default there is no simulation: copies run at memory
/// speed. Figures are per direction; both directions run at the same time, as on PCIe.
struct HostLinkOptions {
  /// Bytes per second; 0 is unlimited.
  double h2d_bytes_per_second = 0;
  double d2h_bytes_per_second = 0;
  /// Added to every copy call.
  std::chrono::nanoseconds latency{0};
  /// A uniformly random extra delay in [0, jitter], drawn from `seed`.
  std::chrono::nanoseconds jitter{0};
  /// The first copy of each direction takes this much longer, and the copies after it wait: a link
  /// that stalls once and recovers.
  std::chrono::nanoseconds stall{0};
  LinkOrder order = LinkOrder::kFifo;
  /// The n-th copy call (from 1, in order of submission, both directions together) fails, once; 0:
  /// none. Part of its bytes can be written, as on a real device.
  std::uint64_t fail_nth = 0;
  /// Every copy call fails with this probability, drawn from `seed`: the same calls fail in every
  /// run.
  double fail_probability = 0;
  /// Damage to blocks, drawn from `seed`. With it all copies of the device go one after the other,
  /// also those that are not simulated.
  InjectionOptions inject = {};
  std::uint64_t seed = 0;
};

/// What a test does to one operation before it runs.
struct OperationVerdict {
  std::chrono::nanoseconds delay{0};
  bool fail = false;
  /// The device is lost with this operation, which fails (kInDoubt: half of a copy is written).
  /// With memory in doubt, work that was submitted earlier still runs, as late as its interceptor
  /// decides; with memory quiet, it does not run.
  std::optional<LostMemory> loses = std::nullopt;
};

/// The operation that a test's interceptor sees.
struct OperationInfo {
  enum class Kind : std::uint8_t { kCopyD2H, kCopyH2D, kGather, kScatter, kSum, kFill };
  Kind kind = Kind::kCopyD2H;
  std::uint64_t bytes = 0;
};

/// Called before each operation, on the thread that runs it. It can block to delay the operation.
/// It must not throw. Several threads call it at the same time.
using OperationInterceptor = std::function<OperationVerdict(const OperationInfo&)>;

/// Numbers of live objects that a device has made.
struct HostDeviceUsage {
  std::uint64_t num_streams = 0;  ///< Views included.
  std::uint64_t num_events = 0;
  std::uint64_t num_buffers = 0;
  std::uint64_t num_registrations = 0;
  bool operator==(const HostDeviceUsage&) const = default;
};

/// For leak tests. `device` was made by make_host_device().
[[nodiscard]] HostDeviceUsage host_device_usage(const Device& device);

/// Makes the host back end's device. Its streams are threads, and its events are real.
/// `interceptor` can be empty. Throws ConfigError if a figure of `link` is negative, not finite, or
/// not a probability, or if the log's file cannot be written.
[[nodiscard]] std::unique_ptr<Device> make_host_device(const HostLinkOptions& link = {},
                                                       OperationInterceptor interceptor = {});

/// The log of injections since the last call. `device` was made by make_host_device(). Empty if its
/// log is a file.
[[nodiscard]] std::vector<InjectionEvent> take_injections(Device& device);

}  // namespace kvferry::gpu
