// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <map>
#include <span>

namespace kvferry::gpu {

/// The live host registrations of one device, by device address. Thread-safe.
class RegisteredRanges {
 public:
  /// Throws DeviceError if the range is empty, reaches past the address space or overlaps a live
  /// one.
  void add(std::uintptr_t address, std::uint64_t bytes);
  /// Removes the range that was added at `address`.
  void remove(std::uintptr_t address);
  /// Throws DeviceError naming the first run whose host side is not within one range.
  void check(CopyDirection direction, std::span<const CopyRun> runs) const;
  /// Whether `address` lies in one of them.
  [[nodiscard]] bool has(std::uintptr_t address) const;
  [[nodiscard]] std::uint64_t num_ranges() const;

 private:
  mutable Mutex mutex_;
  /// Begin -> end.
  std::map<std::uintptr_t, std::uintptr_t> ranges_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
