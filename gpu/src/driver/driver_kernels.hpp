// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"

#include "driver/driver_api.hpp"
#include "kernels/pack_launch.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace kvferry::gpu {

class DriverContext;

/// The code object of one device, which is loaded at its first use, and its functions. Thread-safe.
class DriverKernels {
 public:
  /// An empty `image` means the build's own kernels.
  DriverKernels(DriverContext& context, std::span<const std::byte> image)
      : context_(context), image_(image) {}
  DriverKernels(const DriverKernels&) = delete;
  DriverKernels& operator=(const DriverKernels&) = delete;
  ~DriverKernels();

  /// The kernel `name`, allowed to use `shared_bytes` of dynamic shared memory. To be called within
  /// a DriverScope. Throws DeviceError, with one line if the build has no code for the
  /// architecture.
  [[nodiscard]] FunctionHandle function(const std::string& name, std::uint32_t shared_bytes);

  /// Whether there is an image for the device, or the source from which one can be compiled.
  [[nodiscard]] bool available() const;
  /// Whether the device and the image have the bulk-copy kernels; a given image has all kernels.
  [[nodiscard]] BulkCopy bulk_copy() const;

 private:
  struct Function {
    FunctionHandle handle{};
    std::uint32_t shared_bytes = 0;  ///< The shared memory that it may use.
  };
  [[nodiscard]] ModuleHandle module();
  [[nodiscard]] ModuleHandle load();
  /// Machine code for the device; empty if the build has none.
  [[nodiscard]] std::span<const std::byte> image() const;

  DriverContext& context_;
  const std::span<const std::byte> image_;
  Mutex mutex_;
  ModuleHandle module_ KVFERRY_GUARDED_BY(mutex_){};
  std::map<std::string, Function> functions_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
