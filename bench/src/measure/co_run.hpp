// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/co_run_launcher.hpp"
#include "kvferry/gpu/device.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

/// Work of the kind that an engine gives a device, to measure what copies beside it cost.
namespace kvferry::bench {

/// "gemm", "stream".
[[nodiscard]] const char* to_string(gpu::CoRunKind kind);
/// The inverse. Throws ConfigError that lists the names.
[[nodiscard]] gpu::CoRunKind co_run_kind_from(std::string_view name);

struct CoRunOptions {
  /// What an iteration is to take on the device when nothing else runs. The result can miss it by
  /// half a launch.
  std::chrono::nanoseconds iteration = std::chrono::milliseconds(4);
  /// What one launch is to take: an iteration is a row of launches, as a step is a row of layers,
  /// so that the work of other streams gets in between.
  std::chrono::nanoseconds launch = std::chrono::microseconds(100);
  /// kStream: bytes of each of its three buffers. Above 32 MiB x 3 no last-level cache of today
  /// holds them.
  std::uint64_t buffer_bytes = std::uint64_t{128} << 20U;
};

/// Iterations of one kind of work, sized on this device. One thread at a time. The owner quiesces
/// the streams before it goes.
class CoRunner {
 public:
  virtual ~CoRunner() = default;
  [[nodiscard]] virtual gpu::CoRunKind kind() const = 0;
  /// Submits one iteration. `stream` is one of the device's. Throws DeviceError.
  virtual void submit(gpu::Stream& stream) = 0;
  /// Of device memory that an iteration reads and writes; 0: kGemm.
  [[nodiscard]] virtual std::uint64_t bytes_per_iteration() const = 0;
  /// Whether what all iterations computed so far is right, as far as a sample shows. Waits for
  /// nothing: the owner quiesces the streams before. Throws DeviceError.
  [[nodiscard]] virtual bool verify() = 0;
  /// "gemm: 40 launches of 528 x 256 threads, 8.1 GFLOP each", for reports.
  [[nodiscard]] virtual std::string description() const = 0;
};

/// Makes the work and measures how much of it an iteration is; the device should be idle. Throws
/// ResourceError, or DeviceError (also if the build has no kernels for the device). `device`
/// outlives it.
[[nodiscard]] std::unique_ptr<CoRunner> make_co_runner(gpu::Device& device, gpu::CoRunKind kind,
                                                       const CoRunOptions& options = {});

}  // namespace kvferry::bench
