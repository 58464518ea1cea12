// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cuda_abi.hpp"
#include "driver/shared_library.hpp"

#include <string>

namespace kvferry::gpu {

/// The entry points of a CUDA driver. Each is requested with an explicit version, so that a newer
/// driver gives the function that is declared here. Initialised. Immutable.
class CudaLibrary {
 public:
  /// Opens `name` (empty: libcuda.so.1), checks its version against `floor` before anything else,
  /// and initialises it. Throws DeviceError.
  explicit CudaLibrary(const std::string& name, int floor = build_floor());

  /// 13000 for CUDA 13.0.
  [[nodiscard]] int version() const { return version_; }
  /// "13.0".
  [[nodiscard]] static std::string version_text(int version);
  /// The oldest driver that this build takes.
  [[nodiscard]] static int build_floor();

  /// Name, number and text of a code.
  [[nodiscard]] std::string describe(cuda_abi::Result code) const;
  /// Throws DeviceError unless the call succeeded.
  void require(cuda_abi::Result code, const std::string& what) const;

  cuda_abi::GetErrorText get_error_name = nullptr;
  cuda_abi::GetErrorText get_error_string = nullptr;
  cuda_abi::DeviceGetCount device_get_count = nullptr;
  cuda_abi::DeviceGet device_get = nullptr;
  cuda_abi::DeviceGetName device_get_name = nullptr;
  cuda_abi::DeviceGetPciBusId device_get_pci_bus_id = nullptr;
  cuda_abi::DeviceGetAttribute device_get_attribute = nullptr;
  cuda_abi::PrimaryContextRetain primary_context_retain = nullptr;
  cuda_abi::PrimaryContextRelease primary_context_release = nullptr;
  cuda_abi::ContextPush context_push = nullptr;
  cuda_abi::ContextPop context_pop = nullptr;
  cuda_abi::ContextGetStreamPriorities context_get_stream_priorities = nullptr;
  cuda_abi::ExchangeCaptureMode exchange_capture_mode = nullptr;
  cuda_abi::StreamCreate stream_create = nullptr;
  cuda_abi::StreamCall stream_destroy = nullptr;
  cuda_abi::StreamCall stream_query = nullptr;
  cuda_abi::StreamIsCapturing stream_is_capturing = nullptr;
  cuda_abi::StreamGetContext stream_get_context = nullptr;
  cuda_abi::StreamWaitEvent stream_wait_event = nullptr;
  cuda_abi::EventCreate event_create = nullptr;
  cuda_abi::EventCall event_destroy = nullptr;
  cuda_abi::EventCall event_query = nullptr;
  cuda_abi::EventRecord event_record = nullptr;
  cuda_abi::EventElapsed event_elapsed = nullptr;
  cuda_abi::CopyToDevice copy_to_device = nullptr;
  cuda_abi::CopyToHost copy_to_host = nullptr;
  /// At most one of the two is set; neither before CUDA 12.8.
  cuda_abi::CopyBatch12080 copy_batch_12080 = nullptr;
  cuda_abi::CopyBatch13000 copy_batch_13000 = nullptr;
  cuda_abi::Fill fill = nullptr;
  cuda_abi::Allocate allocate = nullptr;
  cuda_abi::Free free = nullptr;
  cuda_abi::MemoryGetInfo memory_get_info = nullptr;
  cuda_abi::HostRegister host_register = nullptr;
  cuda_abi::HostUnregister host_unregister = nullptr;
  cuda_abi::HostGetDevicePointer host_get_device_pointer = nullptr;
  cuda_abi::ModuleLoad module_load = nullptr;
  cuda_abi::ModuleUnload module_unload = nullptr;
  cuda_abi::ModuleGetFunction module_get_function = nullptr;
  cuda_abi::FunctionSetAttribute function_set_attribute = nullptr;
  cuda_abi::Launch launch = nullptr;

 private:
  void read_version(int floor);
  void resolve_all();
  /// Sets the function, or null if the driver does not have it. Returns whether it has.
  template <class Function>
  bool find(Function& function, const char* name, int version) const;
  template <class Function>
  void resolve(Function& function, const char* name, int version);

  SharedLibrary library_;
  cuda_abi::GetProcAddress get_proc_address_ = nullptr;
  int version_ = 0;
};

}  // namespace kvferry::gpu
