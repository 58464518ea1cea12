// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/co_run_launcher.hpp"
#include "kvferry/gpu/device.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

/// Work like an engine's, to measure what copies cost that run at the same time.
namespace kvferry::bench {

/// The name of a kind: "gemm", "stream".
[[nodiscard]] const char* to_string(gpu::CoRunKind kind);
/// The inverse of to_string(). For other names it throws a ConfigError that lists the names.
[[nodiscard]] gpu::CoRunKind co_run_kind_from(std::string_view name);

struct CoRunOptions {
  /// Wanted device time of an iteration when nothing else runs. The result can differ by half a
  /// launch.
  std::chrono::nanoseconds iteration = std::chrono::milliseconds(4);
  /// Wanted time of one launch. An iteration is a sequence of launches, as a step is a sequence of
  /// layers, so the work of other streams can run in between.
  std::chrono::nanoseconds launch = std::chrono::microseconds(100);
  /// kStream: bytes of each of its three buffers. Three buffers of more than 32 MiB do not fit into
  /// any last-level cache of today.
  std::uint64_t buffer_bytes = std::uint64_t{128} << 20U;
};

/// Iterations of one kind of work, with sizes that fit this device. Used by one thread at a time.
/// The owner quiesces the streams before it destroys the object.
class CoRunner {
 public:
  virtual ~CoRunner() = default;
  [[nodiscard]] virtual gpu::CoRunKind kind() const = 0;
  /// Submits one iteration. `stream` is one of the device's. Throws DeviceError.
  virtual void submit(gpu::Stream& stream) = 0;
  /// Bytes of device memory that an iteration reads and writes; 0 for kGemm.
  [[nodiscard]] virtual std::uint64_t bytes_per_iteration() const = 0;
  /// Whether all results so far are right, as far as a sample shows. Does not wait: the owner
  /// quiesces the streams before. Throws DeviceError.
  [[nodiscard]] virtual bool verify() = 0;
  /// A text for reports: "gemm: 40 launches of 528 x 256 threads, 8.1 GFLOP each".
  [[nodiscard]] virtual std::string description() const = 0;
};

/// Makes the work, and measures how much of it fills an iteration; the device should be idle.
/// Throws ResourceError, or DeviceError (also if the build has no kernels for the device). `device`
/// outlives the result.
[[nodiscard]] std::unique_ptr<CoRunner> make_co_runner(gpu::Device& device, gpu::CoRunKind kind,
                                                       const CoRunOptions& options = {});

}  // namespace kvferry::bench
