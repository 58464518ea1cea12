// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/co_run_launcher.hpp"

#include <memory>

namespace kvferry::gpu {

class DriverDevice;

/// The launchers among which make_co_run_launcher() chooses.
[[nodiscard]] std::unique_ptr<CoRunLauncher> make_host_co_run_launcher();
[[nodiscard]] std::unique_ptr<CoRunLauncher> make_driver_co_run_launcher(DriverDevice& device);

}  // namespace kvferry::gpu
