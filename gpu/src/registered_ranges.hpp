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
  /// Throws DeviceError if the range is empty, reaches past the address space, or overlaps a live
  /// range.
  void add(std::uintptr_t address, std::uint64_t bytes);
  /// Removes the range that was added at `address`.
  void remove(std::uintptr_t address);
  /// Throws DeviceError with the first run whose host side is not within one range.
  void check(CopyDirection direction, std::span<const CopyRun> runs) const;
  /// Whether `address` lies in one of the ranges.
  [[nodiscard]] bool has(std::uintptr_t address) const;
  [[nodiscard]] std::uint64_t num_ranges() const;

 private:
  mutable Mutex mutex_;
  /// Maps the begin of a range to its end.
  std::map<std::uintptr_t, std::uintptr_t> ranges_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
