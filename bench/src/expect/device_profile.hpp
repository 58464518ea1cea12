// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "report/report.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::bench {

/// What the calls of a vendor's driver cost, in microseconds. `..._call_us` is the submitting
/// thread's; `..._start_us` is the device's, between two operations of a stream.
struct CallCosts {
  double copy_call_us = 0;
  double copy_start_us = 0;
  double batch_call_us = 0;   ///< Of a batch call, besides its entries.
  double batch_start_us = 0;  ///< The same, of the device.
  double entry_call_us = 0;   ///< Of an entry of a batch call.
  double entry_start_us = 0;
  double launch_call_us = 0;
  double launch_start_us = 0;
  double wait_us = 0;  ///< Of an event that one stream records and another one waits for; of both.
  /// Host to device, entries of a batch call below `slow_entry_bytes` get no more than this.
  std::uint64_t slow_entry_bytes = 0;
  double slow_entry_gb_per_s = 0;
};
/// Sources are in device_profile.cpp. HIP's for kHip, CUDA's for all others.
[[nodiscard]] const CallCosts& call_costs(gpu::DeviceFamily family);

/// What a device and its link can do, as far as the performance model asks. GB is 1e9 bytes.
struct DeviceProfile {
  std::string name;
  gpu::DeviceFamily family = gpu::DeviceFamily::kCuda90;
  double h2d_gb_per_s = 0;
  double d2h_gb_per_s = 0;
  double both_gb_per_s = 0;    ///< Both directions together.
  double memory_gb_per_s = 0;  ///< Of the device's memory, reads and writes together.
  std::uint32_t num_multiprocessors = 1;
  std::uint32_t threads_per_multiprocessor = 2048;

  [[nodiscard]] const CallCosts& costs() const { return call_costs(family); }
};

/// "h100-sxm" and others, of public data sheets. Throws ConfigError that lists the names.
[[nodiscard]] DeviceProfile profile_from(std::string_view name);
/// A line for each known device, with its figures: what `--gpu list` prints.
[[nodiscard]] std::string known_profiles_text();

/// Its figures in a line.
[[nodiscard]] std::string profile_text(const DeviceProfile& device);

/// Of a GPU, by the peaks of this run: what is expected of a row then depends on no data sheet. A
/// memory rate that was not measured bounds nothing.
[[nodiscard]] DeviceProfile measured_profile(const gpu::Device& device, const LinkPeaks& peaks);

}  // namespace kvferry::bench
