// SPDX-License-Identifier: Apache-2.0
#include "hip/hip_library.hpp"

#include "kvferry/base/error.hpp"

namespace kvferry::gpu {
namespace {

constexpr const char* kRemedy =
    "install ROCm 6 or newer, or import the torch that brings it first; in a container pass in "
    "/dev/kfd and /dev/dri";

// A second copy of the runtime in one process would have its own streams and memory.
SharedLibrary open_runtime(const std::string& name) {
  if (!name.empty()) return SharedLibrary::open(name, kRemedy);
  const std::string loaded = SharedLibrary::find_loaded("libamdhip64.so");
  if (!loaded.empty()) return SharedLibrary::open(loaded, kRemedy);
  try {
    return SharedLibrary::open("libamdhip64.so.7", kRemedy);
  } catch (const DeviceError&) {
    return SharedLibrary::open("libamdhip64.so.6", kRemedy);
  }
}

}  // namespace

HipLibrary::HipLibrary(const std::string& name) : library_(open_runtime(name)) {
  read_version();
  resolve_all();
  hip_abi::Init init = nullptr;
  resolve(init, "hipInit");
  const hip_abi::Result code = init(0);
  if (code != hip_abi::kSuccess) {
    throw DeviceError("cannot initialise the HIP runtime of " + library_.name() + ": error " +
                      std::to_string(code) + ", " + get_error_string(code) +
                      "; does rocminfo list a device, and is HIP_VISIBLE_DEVICES right?");
  }
}

std::string HipLibrary::version_text(int version) {
  return std::to_string(version / 10'000'000) + "." +
         std::to_string(version % 10'000'000 / 100'000);
}

void HipLibrary::read_version() {
  const auto get_version =
      reinterpret_cast<hip_abi::RuntimeGetVersion>(library_.symbol("hipRuntimeGetVersion"));
  if (get_version == nullptr || get_version(&version_) != hip_abi::kSuccess) {
    throw DeviceError(library_.name() + " is not a HIP runtime: it does not report its version; " +
                      kRemedy);
  }
  if (version_ < kFloor) {
    throw DeviceError("the runtime in " + library_.name() + " is HIP " + version_text(version_) +
                      ", but this build needs " + version_text(kFloor) +
                      ": update ROCm, or the torch that brings it");
  }
}

template <class Function>
void HipLibrary::resolve(Function& function, const char* name) {
  function = reinterpret_cast<Function>(library_.symbol(name));
  if (function == nullptr) {
    throw DeviceError("the runtime in " + library_.name() + " (HIP " + version_text(version_) +
                      ") has no " + name + ": reinstall or update ROCm");
  }
}

void HipLibrary::resolve_all() {
  resolve(get_error_name, "hipGetErrorName");
  resolve(get_error_string, "hipGetErrorString");
  resolve(get_device_count, "hipGetDeviceCount");
  resolve(device_get_name, "hipDeviceGetName");
  resolve(device_get_pci_bus_id, "hipDeviceGetPCIBusId");
  resolve(device_get_attribute, "hipDeviceGetAttribute");
  resolve(get_device_properties, "hipGetDevicePropertiesR0600");
  resolve(get_device, "hipGetDevice");
  resolve(set_device, "hipSetDevice");
  resolve(exchange_capture_mode, "hipThreadExchangeStreamCaptureMode");
  resolve(device_get_stream_priorities, "hipDeviceGetStreamPriorityRange");
  resolve(stream_create, "hipStreamCreateWithPriority");
  resolve(stream_destroy, "hipStreamDestroy");
  resolve(stream_query, "hipStreamQuery");
  resolve(stream_is_capturing, "hipStreamIsCapturing");
  resolve(stream_get_device, "hipStreamGetDevice");
  resolve(stream_wait_event, "hipStreamWaitEvent");
  resolve(event_create, "hipEventCreateWithFlags");
  resolve(event_destroy, "hipEventDestroy");
  resolve(event_query, "hipEventQuery");
  resolve(event_record, "hipEventRecord");
  resolve(event_elapsed, "hipEventElapsedTime");
  resolve(copy, "hipMemcpyAsync");
  if (version_ >= kBatchVersion) resolve(copy_batch, "hipMemcpyBatchAsync");
  resolve(fill, "hipMemsetAsync");
  resolve(allocate, "hipMalloc");
  resolve(free, "hipFree");
  resolve(memory_get_info, "hipMemGetInfo");
  resolve(host_register, "hipHostRegister");
  resolve(host_unregister, "hipHostUnregister");
  resolve(host_get_device_pointer, "hipHostGetDevicePointer");
  resolve(module_load, "hipModuleLoadData");
  resolve(module_unload, "hipModuleUnload");
  resolve(module_get_function, "hipModuleGetFunction");
  resolve(launch, "hipModuleLaunchKernel");
}

}  // namespace kvferry::gpu
