// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <memory>
#include <string>
#include <vector>

/// Which device the suites run on that are written for any: the model of the engine pair, transfer
/// tests, the integrity run. The conformance suite asks for all (conformance/device_factory.hpp).
namespace kvferry::gpu {

/// host, cuda, hip (device 0 of the machine), cuda_stand_in, hip_stand_in (tests/fakes).
[[nodiscard]] const std::vector<std::string>& test_backends();

/// What KVFERRY_TEST_BACKEND says; `host` without it. Throws ConfigError that lists the names.
[[nodiscard]] std::string test_backend();

/// Throws ConfigError for another name, DeviceError with one line if it cannot be had.
[[nodiscard]] std::unique_ptr<Device> make_test_device(const std::string& backend);

}  // namespace kvferry::gpu
