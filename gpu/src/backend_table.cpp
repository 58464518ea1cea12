// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/backend_table.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/cuda_device.hpp"
#include "kvferry/gpu/hip_device.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <array>
#include <cstddef>
#include <string>

namespace kvferry::gpu {
namespace {

BackendAvailability host_availability(const DriverOptions& /*options*/) { return {1, ""}; }

std::unique_ptr<Device> make_only_host_device(std::uint32_t ordinal,
                                              const DriverOptions& /*options*/) {
  if (ordinal != 0) throw ConfigError("the host is one device: its ordinal is 0");
  return make_host_device();
}

constexpr std::array kTable{
    BackendRow{BackendKind::kHost, "host", &host_availability, nullptr, &make_only_host_device},
    BackendRow{BackendKind::kCuda, "cuda", &cuda_availability, &find_cuda_devices,
               &make_cuda_device},
    BackendRow{BackendKind::kHip, "hip", &hip_availability, &find_hip_devices, &make_hip_device},
};

}  // namespace

std::span<const BackendRow> backend_table() { return kTable; }

const BackendRow& backend_from(std::string_view name) {
  std::string known;
  for (const BackendRow& row : kTable) {
    if (name == row.name) return row;
    known += std::string(known.empty() ? "" : ", ") + row.name;
  }
  throw ConfigError("back end '" + std::string(name) + "' is unknown; known are: " + known);
}

const BackendRow& row_of(BackendKind kind) { return kTable[static_cast<std::size_t>(kind)]; }

const char* to_string(BackendKind kind) { return row_of(kind).name; }

}  // namespace kvferry::gpu
