// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/driver_options.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

/// The table of back ends. Users choose a back end by the name in its row.
namespace kvferry::gpu {

class Device;

enum class BackendKind : std::uint8_t { kHost, kCuda, kHip };

struct BackendRow {
  BackendKind kind;
  const char* name;
  /// Whether the back end is available in this process. Makes no context, but starts the vendor's
  /// driver, which can hang. Never throws. Thread-safe.
  BackendAvailability (*availability)(const DriverOptions& options);
  /// The devices that the driver reports; null for the host, which has no driver and one device.
  std::vector<FoundDevice> (*find_devices)(const DriverOptions& options);
  /// Makes one device. Throws ConfigError or DeviceError (cuda_device.hpp, hip_device.hpp). The
  /// host's device has no simulated link, and its ordinal is 0.
  std::unique_ptr<Device> (*make_device)(std::uint32_t ordinal, const DriverOptions& options);
};

/// In the order of the enumerators.
[[nodiscard]] std::span<const BackendRow> backend_table();
/// Finds a row by its name. Throws ConfigError that lists the names.
[[nodiscard]] const BackendRow& backend_from(std::string_view name);
[[nodiscard]] const BackendRow& row_of(BackendKind kind);
[[nodiscard]] const char* to_string(BackendKind kind);

}  // namespace kvferry::gpu
