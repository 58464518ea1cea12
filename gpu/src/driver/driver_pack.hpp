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

/// Gather and scatter of one device: the fragment table of each geometry that was used, in device
/// memory until it is forgotten, and the kernels. Thread-safe.
class DriverPack {
 public:
  /// `kernel_image`: empty for the build's own.
  DriverPack(DriverContext& context, std::span<const std::byte> kernel_image)
      : context_(context), kernels_(context, kernel_image) {}
  DriverPack(const DriverPack&) = delete;
  DriverPack& operator=(const DriverPack&) = delete;
  /// Frees the tables.
  ~DriverPack();

  /// The device's kernels, those of co_run_launcher.hpp too.
  [[nodiscard]] DriverKernels& kernels() { return kernels_; }

  /// Whether there are kernels for the device, or a compiler that may make them.
  [[nodiscard]] bool available() const { return kernels_.available(); }

  /// Uploads the geometry's table, if it is new, and finds every kernel that launch() may take for
  /// it. Within a DriverScope. Throws DeviceError.
  void prepare(const BlockGeometry& geometry);
  /// Frees the geometry's table, which nothing that was launched still reads.
  void forget(const BlockGeometry& geometry);

  /// Launches what packs, unpacks or sums `blocks`, one launch for each 960 of them. No sums are
  /// made if `sums` is 0. The first use of a geometry that was not prepared uploads its table and
  /// waits for that. Within a DriverScope. Throws DeviceError if nothing was launched; returns why
  /// a later launch failed, or nothing.
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
  /// Device address of the geometry's table.
  [[nodiscard]] std::uintptr_t table(const BlockGeometry& geometry);
  /// 0 if there is none yet.
  [[nodiscard]] std::uintptr_t find(const BlockGeometry& geometry) const;
  [[nodiscard]] std::uintptr_t upload(const BlockGeometry& geometry);

  /// Unless the device is lost.
  void free(const std::vector<Table>& tables);

  DriverContext& context_;
  DriverKernels kernels_;
  mutable Mutex mutex_;
  std::vector<Table> tables_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
