// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_library.hpp"

#include "kvferry/base/error.hpp"

#include "kernels/code_objects.hpp"

#include <algorithm>

namespace kvferry::gpu {
namespace {

constexpr const char* kRemedy =
    "install an NVIDIA driver, or in a container start it with the GPUs passed in (--gpus all)";
/// The version of CUDA 12.4, the oldest with which this code is tested to build.
constexpr int kOldestVersion = 12040;

std::string driver_branch(int version) {
  if (version >= 13000) return "580";
  return version >= 12080 ? "570" : "550";
}

}  // namespace

CudaLibrary::CudaLibrary(const std::string& name, int floor)
    : library_(SharedLibrary::open(name.empty() ? "libcuda.so.1" : name, kRemedy)) {
  read_version(floor);
  get_proc_address_ =
      reinterpret_cast<cuda_abi::GetProcAddress>(library_.symbol("cuGetProcAddress_v2"));
  if (get_proc_address_ == nullptr) {
    throw DeviceError(library_.name() + " has no cuGetProcAddress_v2: reinstall the driver");
  }
  resolve_all();
  cuda_abi::Init init = nullptr;
  resolve(init, "cuInit", 2000);
  const cuda_abi::Result code = init(0);
  if (code != cuda_abi::kSuccess) {
    const char* text = nullptr;
    get_error_string(code, &text);
    throw DeviceError("cannot initialise the CUDA driver of " + library_.name() + ": error " +
                      std::to_string(code) + ", " + (text == nullptr ? "unknown" : text) +
                      "; does nvidia-smi list a device, and is CUDA_VISIBLE_DEVICES right?");
  }
}

std::string CudaLibrary::version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Machine code of a toolkit runs on every driver of its major version.
int CudaLibrary::build_floor() {
  return std::max(kOldestVersion, cuda_toolkit_version() / 1000 * 1000);
}

std::string CudaLibrary::describe(cuda_abi::Result code) const {
  const char* name = nullptr;
  const char* text = nullptr;
  static_cast<void>(get_error_name(code, &name));
  static_cast<void>(get_error_string(code, &text));
  return std::string(name == nullptr ? "unknown CUDA error" : name) + " (" + std::to_string(code) +
         (text == nullptr ? ")" : std::string("): ") + text);
}

void CudaLibrary::require(cuda_abi::Result code, const std::string& what) const {
  if (code != cuda_abi::kSuccess) throw DeviceError("cannot " + what + ": " + describe(code));
}

void CudaLibrary::read_version(int floor) {
  const auto get_version =
      reinterpret_cast<cuda_abi::DriverGetVersion>(library_.symbol("cuDriverGetVersion"));
  if (get_version == nullptr || get_version(&version_) != cuda_abi::kSuccess) {
    throw DeviceError(library_.name() + " is not a CUDA driver: it does not report its version; " +
                      kRemedy);
  }
  if (version_ < floor) {
    throw DeviceError("the driver in " + library_.name() + " is for CUDA " +
                      version_text(version_) + ", but this build needs " + version_text(floor) +
                      ": update the NVIDIA driver to branch " + driver_branch(floor) +
                      " or newer, or install a build for an older CUDA");
  }
}

template <class Function>
bool CudaLibrary::find(Function& function, const char* name, int version) const {
  void* address = nullptr;
  int status = 0;
  const auto code = get_proc_address_(name, &address, version, 0, &status);
  if (code != cuda_abi::kSuccess) address = nullptr;
  function = reinterpret_cast<Function>(address);
  return function != nullptr;
}

template <class Function>
void CudaLibrary::resolve(Function& function, const char* name, int version) {
  if (!find(function, name, version)) {
    throw DeviceError("the driver in " + library_.name() + " (CUDA " + version_text(version_) +
                      ") has no " + name + " of version " + version_text(version) +
                      ": reinstall or update it");
  }
}

void CudaLibrary::resolve_all() {
  resolve(get_error_name, "cuGetErrorName", 6000);
  resolve(get_error_string, "cuGetErrorString", 6000);
  resolve(device_get_count, "cuDeviceGetCount", 2000);
  resolve(device_get, "cuDeviceGet", 2000);
  resolve(device_get_name, "cuDeviceGetName", 2000);
  resolve(device_get_pci_bus_id, "cuDeviceGetPCIBusId", 4010);
  resolve(device_get_attribute, "cuDeviceGetAttribute", 2000);
  resolve(primary_context_retain, "cuDevicePrimaryCtxRetain", 7000);
  resolve(primary_context_release, "cuDevicePrimaryCtxRelease", 11000);
  resolve(context_push, "cuCtxPushCurrent", 4000);
  resolve(context_pop, "cuCtxPopCurrent", 4000);
  resolve(context_get_stream_priorities, "cuCtxGetStreamPriorityRange", 5050);
  resolve(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", 10010);
  resolve(stream_create, "cuStreamCreateWithPriority", 5050);
  resolve(stream_destroy, "cuStreamDestroy", 4000);
  resolve(stream_query, "cuStreamQuery", 2000);
  resolve(stream_is_capturing, "cuStreamIsCapturing", 10000);
  resolve(stream_get_context, "cuStreamGetCtx", 9020);
  resolve(stream_wait_event, "cuStreamWaitEvent", 3020);
  resolve(event_create, "cuEventCreate", 2000);
  resolve(event_destroy, "cuEventDestroy", 4000);
  resolve(event_query, "cuEventQuery", 2000);
  resolve(event_record, "cuEventRecord", 2000);
  resolve(event_elapsed, "cuEventElapsedTime", 2000);
  resolve(copy_to_device, "cuMemcpyHtoDAsync", 3020);
  resolve(copy_to_host, "cuMemcpyDtoHAsync", 3020);
  // The driver's version decides, not an attempt: an older driver may return its own function for
  // 13.0.
  if (version_ >= 13000) {
    static_cast<void>(find(copy_batch_13000, "cuMemcpyBatchAsync", 13000));
  } else if (version_ >= 12080) {
    static_cast<void>(find(copy_batch_12080, "cuMemcpyBatchAsync", 12080));
  }
  resolve(fill, "cuMemsetD8Async", 3020);
  resolve(allocate, "cuMemAlloc", 3020);
  resolve(free, "cuMemFree", 3020);
  resolve(memory_get_info, "cuMemGetInfo", 3020);
  resolve(host_register, "cuMemHostRegister", 6050);
  resolve(host_unregister, "cuMemHostUnregister", 4000);
  resolve(host_get_device_pointer, "cuMemHostGetDevicePointer", 3020);
  resolve(module_load, "cuModuleLoadData", 2000);
  resolve(module_unload, "cuModuleUnload", 2000);
  resolve(module_get_function, "cuModuleGetFunction", 2000);
  resolve(function_set_attribute, "cuFuncSetAttribute", 9000);
  resolve(launch, "cuLaunchKernel", 4000);
}

}  // namespace kvferry::gpu
