// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/co_run_launcher.hpp"

#include "kvferry/base/check.hpp"

#include "co_run_launchers.hpp"
#include "driver/driver_device.hpp"
#include "kernels/co_run_work.hpp"

namespace kvferry::gpu {

std::uint64_t CoRunLauncher::num_flop(std::uint32_t num_passes) const {
  return num_threads() * kCoRunFlopPerPass * num_passes;
}

float CoRunLauncher::gemm_result() { return kCoRunGemmResult; }

float CoRunLauncher::stream_result(float b, float c) { return co_run_triad(b, c); }

std::unique_ptr<CoRunLauncher> make_co_run_launcher(Device& device) {
  if (device.kind() == BackendKind::kHost) return make_host_co_run_launcher();
  auto* const driver = dynamic_cast<DriverDevice*>(&device);
  KVFERRY_CHECK(driver != nullptr, "a device of an unknown back end");
  return make_driver_co_run_launcher(*driver);
}

}  // namespace kvferry::gpu
