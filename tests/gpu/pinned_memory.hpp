// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

namespace kvferry::gpu {

/// Whole pages of registered host memory. The owner quiesces.
class PinnedMemory {
 public:
  PinnedMemory(Device& device, std::size_t bytes)
      : bytes_((bytes + kPage - 1) / kPage * kPage),
        memory_(static_cast<std::uint8_t*>(::operator new (bytes_, std::align_val_t{kPage}))),
        registration_(device.register_host(memory_.get(), bytes_)) {}

  [[nodiscard]] std::span<std::uint8_t> bytes() { return {memory_.get(), bytes_}; }
  /// As the device names it.
  [[nodiscard]] std::uintptr_t device_address() const { return registration_->device_address(); }

 private:
  static constexpr std::size_t kPage = 4096;
  struct Free {
    void operator()(std::uint8_t* memory) const {
      ::operator delete (memory, std::align_val_t{kPage});
    }
  };

  std::size_t bytes_;
  std::unique_ptr<std::uint8_t, Free> memory_;
  std::unique_ptr<HostRegistration> registration_;
};

}  // namespace kvferry::gpu
