// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/driver_api.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvferry::smoke {

/// A back end named on the command line: cuda, hip, cuda_stand_in or hip_stand_in.
struct SmokeBackend {
  std::string name;
  [[nodiscard]] bool is_cuda() const { return name.rfind("cuda", 0) == 0; }
  [[nodiscard]] bool is_stand_in() const { return name.find("stand_in") != std::string::npos; }
  /// Empty: the machine's own.
  [[nodiscard]] std::string library() const;
};

/// The driver's calls without our rules above them, current on this thread, two neighbouring
/// registrations of host memory and as much device memory. Throws std::runtime_error with the
/// driver's words. Nothing is given back: the process ends soon, and a call may hang.
class SmokeDevice {
 public:
  static constexpr std::size_t kPiece = std::size_t{1} << 22U;
  explicit SmokeDevice(const SmokeBackend& backend);

  [[nodiscard]] gpu::DriverApi& api() { return *api_; }
  void require(gpu::DriverResult result, const std::string& what) const;
  template <class T>
  [[nodiscard]] T require(gpu::DriverValue<T> made, const std::string& what) const {
    require(made.result, what);
    return made.value;
  }
  /// Memory for copies; the second call does nothing.
  void make_memory();
  [[nodiscard]] gpu::StreamHandle make_stream() {
    return require(api_->create_stream(gpu::kNormalPriority), "create a stream");
  }
  void settle(gpu::StreamHandle stream);
  [[nodiscard]] std::span<std::uint8_t> host() { return {host_, 2 * kPiece}; }
  /// The device's address of the registered memory.
  [[nodiscard]] std::uintptr_t alias() const { return alias_; }
  [[nodiscard]] std::uintptr_t memory() const { return memory_; }
  /// The kernels of this device; loaded at each call.
  [[nodiscard]] gpu::ModuleHandle load_kernels();
  /// What the driver itself says, as it says it.
  [[nodiscard]] std::string raw_bus_id() const;
  /// The vendor's function of the loaded driver.
  [[nodiscard]] void* symbol(const char* name) const;

 private:
  SmokeBackend backend_;
  std::unique_ptr<gpu::DriverApi> api_;
  std::uint8_t* host_ = nullptr;
  std::uintptr_t alias_ = 0;
  std::uintptr_t memory_ = 0;
};

/// Byte `i` of what the facts move.
[[nodiscard]] std::uint8_t byte_at(std::size_t i);
/// Empty, or the first wrong byte: its offset, what was expected and found.
[[nodiscard]] std::string first_wrong(std::span<const std::uint8_t> bytes);

}  // namespace kvferry::smoke
