// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvferry::gpu {

/// What can be said about a back end that stands on a vendor's driver.
struct DriverOptions {
  /// Path or name of the library to open; empty: as the vendor's factory says.
  std::string library = {};
  /// Code object with the kernels, for a device that the build has none for; empty: the build's
  /// own. Outlives the device.
  std::span<const std::byte> kernel_image = {};
};

/// Whether a back end can be had in this process.
struct BackendAvailability {
  std::uint32_t num_devices = 0;
  /// One line: what was found, what is needed, what to do. Empty if it can be had.
  std::string why_not;
  [[nodiscard]] bool available() const { return why_not.empty(); }
};

}  // namespace kvferry::gpu
