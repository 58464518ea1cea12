// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/shared_library.hpp"
#include "hip/hip_abi.hpp"

#include <string>

namespace kvferry::gpu {

/// The functions of a HIP runtime, which is initialised. Immutable.
class HipLibrary {
 public:
  /// Opens `name`; empty: the libamdhip64 that the process has loaded, otherwise libamdhip64.so.7
  /// or .so.6. Checks its version before anything else. Throws DeviceError.
  explicit HipLibrary(const std::string& name);

  /// 10'000'000 per major version and 100'000 per minor version, plus a patch number.
  [[nodiscard]] int version() const { return version_; }
  [[nodiscard]] const SharedLibrary& library() const { return library_; }
  /// "7.1".
  [[nodiscard]] static std::string version_text(int version);
  /// The oldest runtime that this build takes.
  static constexpr int kFloor = 60'000'000;
  /// Before this version batch copies are unusable, and their attributes fail.
  static constexpr int kBatchVersion = 70'100'000;
  static constexpr int kBatchAttributesVersion = 71'300'000;

  hip_abi::GetErrorText get_error_name = nullptr;
  hip_abi::GetErrorText get_error_string = nullptr;
  hip_abi::GetDeviceCount get_device_count = nullptr;
  hip_abi::DeviceGetName device_get_name = nullptr;
  hip_abi::DeviceGetPciBusId device_get_pci_bus_id = nullptr;
  hip_abi::DeviceGetAttribute device_get_attribute = nullptr;
  hip_abi::GetDeviceProperties get_device_properties = nullptr;
  hip_abi::GetDevice get_device = nullptr;
  hip_abi::SetDevice set_device = nullptr;
  hip_abi::ExchangeCaptureMode exchange_capture_mode = nullptr;
  hip_abi::DeviceGetStreamPriorities device_get_stream_priorities = nullptr;
  hip_abi::StreamCreate stream_create = nullptr;
  hip_abi::StreamCall stream_destroy = nullptr;
  hip_abi::StreamCall stream_query = nullptr;
  hip_abi::StreamIsCapturing stream_is_capturing = nullptr;
  hip_abi::StreamGetDevice stream_get_device = nullptr;
  hip_abi::StreamWaitEvent stream_wait_event = nullptr;
  hip_abi::EventCreate event_create = nullptr;
  hip_abi::EventCall event_destroy = nullptr;
  hip_abi::EventCall event_query = nullptr;
  hip_abi::EventRecord event_record = nullptr;
  hip_abi::EventElapsed event_elapsed = nullptr;
  hip_abi::Copy copy = nullptr;
  /// Null before kBatchVersion.
  hip_abi::CopyBatch copy_batch = nullptr;
  hip_abi::Fill fill = nullptr;
  hip_abi::Allocate allocate = nullptr;
  hip_abi::Free free = nullptr;
  hip_abi::MemoryGetInfo memory_get_info = nullptr;
  hip_abi::HostRegister host_register = nullptr;
  hip_abi::HostUnregister host_unregister = nullptr;
  hip_abi::HostGetDevicePointer host_get_device_pointer = nullptr;
  hip_abi::ModuleLoad module_load = nullptr;
  hip_abi::ModuleUnload module_unload = nullptr;
  hip_abi::ModuleGetFunction module_get_function = nullptr;
  hip_abi::Launch launch = nullptr;

 private:
  void read_version();
  void resolve_all();
  template <class Function>
  void resolve(Function& function, const char* name);

  SharedLibrary library_;
  int version_ = 0;
};

}  // namespace kvferry::gpu
