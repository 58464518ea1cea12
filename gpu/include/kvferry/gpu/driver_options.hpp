// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvferry::gpu {

/// Options of a back end that uses a vendor's driver.
struct DriverOptions {
  /// Path or name of the library to open; empty: the default of the vendor's factory function.
  std::string library = {};
  /// Code object with the kernels, for a device for which the build has none; empty: the build's
  /// own kernels. Outlives the device.
  std::span<const std::byte> kernel_image = {};
};

/// Whether a back end is available in this process.
struct BackendAvailability {
  std::uint32_t num_devices = 0;
  /// One line: what was found, what is needed, what to do. Empty if it is available.
  std::string why_not;
  [[nodiscard]] bool available() const { return why_not.empty(); }
};

/// A device as its driver describes it.
struct FoundDevice {
  std::string name;
  /// "sm_90", "gfx942".
  std::string architecture;
  /// "CUDA driver 13.0".
  std::string driver;
  /// As Device::pci_address().
  std::optional<std::string> pci_address;
  /// This build's kernels for it: "sm_90", "PTX of sm_100", "hipRTC"; empty: none.
  std::string kernels;
};

}  // namespace kvferry::gpu
