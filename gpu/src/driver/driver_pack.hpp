// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/block_geometry.hpp"

#include "driver/driver_api.hpp"
#include "driver/driver_kernels.hpp"
#include "kernels/pack_way.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvferry::gpu {

class DriverContext;

/// Gather and scatter of one device: the kernels, and the fragment table of each geometry that was
/// used, which stays in device memory until the geometry is forgotten. Thread-safe.
class DriverPack {
 public:
  /// An empty `kernel_image` means the build's own kernels.
  DriverPack(DriverContext& context, std::span<const std::byte> kernel_image)
      : context_(context), kernels_(context, kernel_image) {}
  DriverPack(const DriverPack&) = delete;
  DriverPack& operator=(const DriverPack&) = delete;
  /// Frees the tables.
  ~DriverPack();

  /// The device's kernels, including those of co_run_launcher.hpp.
  [[nodiscard]] DriverKernels& kernels() { return kernels_; }

  /// Whether there are kernels for the device, or a compiler that can make them.
  [[nodiscard]] bool available() const { return kernels_.available(); }

  /// Uploads the geometry's table, if it is new, and finds every kernel that launch() may use for
  /// it. To be called within a DriverScope. Throws DeviceError.
  void prepare(const BlockGeometry& geometry);
  /// Frees the geometry's table. No launched work may still read it.
  void forget(const BlockGeometry& geometry);

  /// Launches kernels that pack, unpack or sum `blocks`, one launch for each 960 blocks. Makes no
  /// sums if `sums` is 0. The first use of a geometry that was not prepared uploads its table and
  /// waits for that. To be called within a DriverScope. Throws DeviceError if nothing was launched.
  /// Returns why a later launch failed, or an empty text.
  [[nodiscard]] std::string launch(PackWay way, const BlockGeometry& geometry,
                                   std::span<const BlockId> blocks, std::uintptr_t packed,
                                   std::uintptr_t sums, StreamHandle stream);

 private:
  [[nodiscard]] PackDevice device() const;
  [[nodiscard]] PackTuning tuning(std::uintptr_t packed) const;
  struct Table {
    std::vector<Fragment> fragments;
    std::uintptr_t address = 0;
  };
  /// The device address of the geometry's table.
  [[nodiscard]] std::uintptr_t table(const BlockGeometry& geometry);
  /// The address of the table, or 0 if there is none yet.
  [[nodiscard]] std::uintptr_t find(const BlockGeometry& geometry) const;
  [[nodiscard]] std::uintptr_t upload(const BlockGeometry& geometry);

  /// Frees the tables, unless the device is lost.
  void free(const std::vector<Table>& tables);

  DriverContext& context_;
  DriverKernels kernels_;
  mutable Mutex mutex_;
  std::vector<Table> tables_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
