// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/co_run.hpp"
#include "kvferry/gpu/device.hpp"

#include "kernels/co_run_work.hpp"

#include <cstdint>
#include <memory>

namespace kvferry::gpu {

class DriverDevice;

/// What differs between back ends when co-run work is launched.
class CoRunLauncher {
 public:
  virtual ~CoRunLauncher() = default;
  /// Threads of a launch of kGemm; each has a result.
  [[nodiscard]] virtual std::uint32_t num_threads() const = 0;
  /// Submits one launch. Throws DeviceError.
  virtual void launch(Stream& stream, CoRunKind kind, const CoRunArguments& arguments) = 0;
};

/// On the thread of the stream.
[[nodiscard]] std::unique_ptr<CoRunLauncher> make_host_co_run_launcher();
/// As kernels on every multiprocessor. `device` outlives it. Throws DeviceError if the build has
/// none for it.
[[nodiscard]] std::unique_ptr<CoRunLauncher> make_driver_co_run_launcher(DriverDevice& device);

}  // namespace kvferry::gpu
