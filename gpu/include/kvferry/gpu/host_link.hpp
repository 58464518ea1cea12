// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace kvferry::gpu {

/// In which order the copies that are queued on different streams of one direction pass the link.
enum class LinkOrder : std::uint8_t {
  /// Of the copies whose turn has come in their stream, the one submitted first. A copy that still
  /// waits
  /// for an event holds nobody up.
  kFifo,
  /// Any of them, drawn from `seed`; each is also held back up to 100 us so that others can
  /// overtake it.
  /// Order within a stream stays.
  kShuffled
};

/// The simulated link of the host back end. The default is no simulation: copies run at memory
/// speed. Figures are per direction; both directions run at once, as on PCIe.
struct HostLinkOptions {
  /// Bytes per second; 0 is unlimited.
  double h2d_bytes_per_second = 0;
  double d2h_bytes_per_second = 0;
  /// Added to every copy call.
  std::chrono::nanoseconds latency{0};
  /// Uniformly random extra in [0, jitter], drawn from `seed`.
  std::chrono::nanoseconds jitter{0};
  /// The first copy of each direction takes so much longer, and those behind it wait: a link that
  /// stalls once and recovers.
  std::chrono::nanoseconds stall{0};
  LinkOrder order = LinkOrder::kFifo;
  /// The n-th copy call (from 1, in order of submission, both directions together) fails, once; 0:
  /// none. Its bytes may be partly written, as on a real device.
  std::uint64_t fail_nth = 0;
  /// Every copy call fails with this probability, drawn from `seed`: the same calls in every run.
  double fail_probability = 0;
  std::uint64_t seed = 0;
};

/// What a test can do to one operation before it runs.
struct OperationVerdict {
  std::chrono::nanoseconds delay{0};
  bool fail = false;
  /// The device is lost with this operation, which fails (kInDoubt: half of a copy is written).
  /// With memory in doubt, work that was submitted before still runs, as late as its interceptor
  /// likes; with memory quiet, none does.
  std::optional<LostMemory> loses = std::nullopt;
};

/// The operation a test's interceptor sees.
struct OperationInfo {
  enum class Kind : std::uint8_t { kCopyD2H, kCopyH2D, kGather, kScatter, kFill };
  Kind kind = Kind::kCopyD2H;
  std::uint64_t bytes = 0;
};

/// Called on the thread that runs the operation, before it; may block to hold the operation back.
/// Must not throw. Called from several threads at once.
using OperationInterceptor = std::function<OperationVerdict(const OperationInfo&)>;

/// What is alive of what a device has made.
struct HostDeviceUsage {
  std::uint64_t num_streams = 0;  ///< Views included.
  std::uint64_t num_events = 0;
  std::uint64_t num_buffers = 0;
  std::uint64_t num_registrations = 0;
  bool operator==(const HostDeviceUsage&) const = default;
};

/// For tests that nothing leaks. `device` is one of make_host_device().
[[nodiscard]] HostDeviceUsage host_device_usage(const Device& device);

/// Makes the host back end's device: streams are threads, events are real. `interceptor` may be
/// empty. Throws ConfigError if a figure of `link` is negative, not finite, or not a probability.
[[nodiscard]] std::unique_ptr<Device> make_host_device(const HostLinkOptions& link = {},
                                                       OperationInterceptor interceptor = {});

}  // namespace kvferry::gpu
