// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "report/report.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::bench {

/// The costs of a vendor's driver calls, in microseconds. `..._call_us` is time of the submitting
/// thread; `..._start_us` is time of the device, between two operations of a stream.
struct CallCosts {
  double copy_call_us = 0;
  double copy_start_us = 0;
  double batch_call_us = 0;   ///< A batch call, without its entries.
  double batch_start_us = 0;  ///< The same, on the device.
  double entry_call_us = 0;   ///< An entry of a batch call.
  double entry_start_us = 0;
  double launch_call_us = 0;
  double launch_start_us = 0;
  double wait_us =
      0;  ///< An event that one stream records and another waits for, on both together.
  /// Host to device, this is the highest rate of batch entries below `slow_entry_bytes`.
  std::uint64_t slow_entry_bytes = 0;
  double slow_entry_gb_per_s = 0;
};
/// HIP's costs for kHip, CUDA's for all other families. The sources are in device_profile.cpp.
[[nodiscard]] const CallCosts& call_costs(gpu::DeviceFamily family);

/// The properties of a device and its link that the performance model uses. GB is 1e9 bytes.
struct DeviceProfile {
  std::string name;
  gpu::DeviceFamily family = gpu::DeviceFamily::kCuda90;
  double h2d_gb_per_s = 0;
  double d2h_gb_per_s = 0;
  double both_gb_per_s = 0;    ///< Both directions together.
  double memory_gb_per_s = 0;  ///< The device's memory, reads and writes together.
  std::uint32_t num_multiprocessors = 1;
  std::uint32_t threads_per_multiprocessor = 2048;

  [[nodiscard]] const CallCosts& costs() const { return call_costs(family); }
};

/// The profile with that name, such as "h100-sxm", from public data sheets. For other names it
/// throws a ConfigError that lists the names.
[[nodiscard]] DeviceProfile profile_from(std::string_view name);
/// The output of `--gpu list`: a line for each known device, with its figures.
[[nodiscard]] std::string known_profiles_text();

/// The figures of a profile in one line.
[[nodiscard]] std::string profile_text(const DeviceProfile& device);

/// The profile of a GPU, from the peaks of this run, so expectations depend on no data sheet. A
/// memory rate that was not measured sets no limit.
[[nodiscard]] DeviceProfile measured_profile(const gpu::Device& device, const LinkPeaks& peaks);

}  // namespace kvferry::bench
