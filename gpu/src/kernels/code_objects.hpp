// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

/// The kernels as cmake/KvferryKernels.cmake compiled and embedded them. All of them live as long
/// as the process, are aligned to 64 bytes and followed by a zero byte.
namespace kvferry::gpu {

/// One image with a code object per architecture and PTX for the newest, for cuModuleLoadData.
/// Empty if built without nvcc.
[[nodiscard]] std::span<const std::byte> cuda_fatbin();

/// The version of the toolkit that made cuda_fatbin(), in the format of cuDriverGetVersion: 13000
/// for 13.0; 0 if built without nvcc. A driver below its major version does not load the image at
/// all (NVIDIA, "CUDA Compatibility").
[[nodiscard]] int cuda_toolkit_version();

/// The compute capabilities of the machine code in cuda_fatbin(), ascending: 100 for 10.0; empty if
/// built without nvcc. There is PTX for the last one.
[[nodiscard]] std::span<const int> cuda_architectures();

/// The last one of these, or 0. The bulk-copy kernels exist if this and the device's are at least
/// 90.
[[nodiscard]] inline int cuda_newest_architecture() {
  return cuda_architectures().empty() ? 0 : cuda_architectures().back();
}

/// The part of cuda_fatbin() that a driver takes for a device: "sm_80" for 86, "PTX of sm_100" for
/// 120; empty if none of it runs on the device. Machine code runs on later devices of its major
/// number, PTX on all later devices (CUDA C++ Programming Guide, "Compute Capability").
[[nodiscard]] std::string cuda_code_for(int compute_capability,
                                        std::span<const int> architectures = cuda_architectures());

/// An image for hipModuleLoadData. `arch` is a bare processor name, "gfx90a": it fits every
/// xnack and sramecc setting.
struct HipCodeObject {
  std::string_view arch;
  std::span<const std::byte> bytes;
};

/// Empty if built without hipcc. Architectures that hipcc refuses are left out.
[[nodiscard]] std::span<const HipCodeObject> hip_code_objects();

/// The code object of one architecture; empty if there is none.
[[nodiscard]] inline std::span<const std::byte> hip_code_object(std::string_view arch) {
  for (const HipCodeObject& object : hip_code_objects()) {
    if (object.arch == arch) return object.bytes;
  }
  return {};
}

/// The source of the kernels as one text without includes, for hipRTC if hip_code_objects() has no
/// fitting one (options: --offload-arch=ARCH -std=c++17 -O3), or for NVRTC.
[[nodiscard]] std::string_view pack_kernel_source();

}  // namespace kvferry::gpu
