// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "pinned_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvferry::gpu {

/// Reads and writes a device's memory for a test, on any device, in the order of one stream: as an
/// engine does in that of its compute stream, behind the gathers and fences that were submitted
/// there before. On the host back end the calling thread reads and writes by itself, at once.
class DeviceAccess {
 public:
  DeviceAccess(Device& device, std::unique_ptr<Stream> stream);
  /// Waits for what was submitted.
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;

  void write(std::uintptr_t address, std::span<const std::uint8_t> bytes);
  void fill(std::uintptr_t address, std::uint8_t value, std::size_t bytes);
  /// Waits for everything submitted. Throws TimeoutError after two minutes.
  void read(std::uintptr_t address, std::span<std::uint8_t> bytes);
  void wait();

 private:
  [[nodiscard]] bool is_host() const { return pinned_ == nullptr; }

  /// Null on the host back end.
  std::unique_ptr<PinnedMemory> pinned_;
  /// Writes under way read what lies before it.
  std::size_t pinned_used_ = 0;
  std::unique_ptr<Stream> stream_;
};

}  // namespace kvferry::gpu
