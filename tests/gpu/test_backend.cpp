// SPDX-License-Identifier: Apache-2.0
#include "test_backend.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/cuda_device.hpp"
#include "kvferry/gpu/hip_device.hpp"

#include "fake_control.hpp"
#include "fake_library.hpp"

#include <algorithm>
#include <cstdlib>

namespace kvferry::gpu {
namespace {

[[noreturn]] void reject(const std::string& backend) {
  std::string names;
  for (const std::string& name : test_backends()) names += ' ' + name;
  throw ConfigError("there is no back end '" + backend + "'; there are:" + names);
}

}  // namespace

const std::vector<std::string>& test_backends() {
  static const std::vector<std::string> kNames = {"host", "cuda", "hip", "cuda_stand_in",
                                                  "hip_stand_in"};
  return kNames;
}

std::string test_backend() {
  const char* const named = std::getenv("KVFERRY_TEST_BACKEND");
  const std::string backend = named == nullptr || *named == '\0' ? "host" : named;
  const auto& names = test_backends();
  if (std::find(names.begin(), names.end(), backend) == names.end()) reject(backend);
  return backend;
}

std::unique_ptr<Device> make_test_device(const std::string& backend) {
  if (backend == "host") return make_host_device();
  if (backend == "cuda") return make_cuda_device(0);
  if (backend == "hip") return make_hip_device(0);
  DriverOptions stand_in;
  stand_in.kernel_image = fakes::kFakeImage;
  if (backend == "cuda_stand_in") {
    stand_in.library = fakes::fake_cuda_library();
    return make_cuda_device(0, stand_in);
  }
  if (backend == "hip_stand_in") {
    stand_in.library = fakes::fake_hip_library();
    return make_hip_device(0, stand_in);
  }
  reject(backend);
}

}  // namespace kvferry::gpu
