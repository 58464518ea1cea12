// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/cuda_device.hpp"
#include "kvferry/gpu/hip_device.hpp"

#include "fake_control.hpp"

#include <dlfcn.h>
#include <memory>

namespace kvferry::transfer {

/// The vendors' back ends on stand-in drivers, for RigOptions::make_device.
[[nodiscard]] inline std::unique_ptr<gpu::Device> cuda_stand_in() {
  return gpu::make_cuda_device(0,
                               {.library = KVFERRY_FAKE_CUDA, .kernel_image = fakes::kFakeImage});
}
/// Its registered memory has another address on the device than on the host.
[[nodiscard]] inline std::unique_ptr<gpu::Device> hip_stand_in() {
  return gpu::make_hip_device(0, {.library = KVFERRY_FAKE_HIP, .kernel_image = fakes::kFakeImage});
}

/// The control of the stand-in driver in that library.
[[nodiscard]] inline fakes::FakeControl& control_of(const char* library) {
  using Get = fakes::FakeControl* (*)();
  void* const opened = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return *reinterpret_cast<Get>(::dlsym(opened, fakes::kFakeControlSymbol))();
}

}  // namespace kvferry::transfer
