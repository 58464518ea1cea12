// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

/// A device as its driver describes it to anybody who asks.
struct FoundDevice {
  std::string name;
  /// "sm_90", "gfx942".
  std::string architecture;
  /// "CUDA driver 13.0".
  std::string driver;
  /// As Device::pci_address().
  std::optional<std::string> pci_address;
  /// What this build has for it: "sm_90", "PTX of sm_100", "hipRTC"; empty: nothing.
  std::string kernels;
};

}  // namespace kvferry::gpu
