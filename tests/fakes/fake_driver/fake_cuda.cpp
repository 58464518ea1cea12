// SPDX-License-Identifier: Apache-2.0
// The stand-in for libcuda.so.1: an H100 that is the host.
#include "cuda/cuda_abi.hpp"
#include "fake_core.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace {

using namespace kvferry::fakes;          // NOLINT(google-build-using-namespace)
using namespace kvferry::gpu::cuda_abi;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kMostBatchRuns = 4096;
constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;
Handle const kContext = reinterpret_cast<Handle>(0x10);

// Never destroyed: work may still run when the process ends.
FakeCore& core() {
  static auto* const kCore = new FakeCore(13000, 0);
  return *kCore;
}

std::uintptr_t number(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }
Handle handle(std::uintptr_t number) { return reinterpret_cast<Handle>(number); }

/// Of calls that need a current context.
Result enter(const char* function) {
  const Result code = core().enter(function);
  if (code != kSuccess) return code;
  return FakeCore::context() > 0 ? kSuccess : kInvalidContext;
}

#define KVFERRY_FAKE_ENTER(function)                         \
  if (const Result code = enter(function); code != kSuccess) \
  return code == kSkipped ? kSuccess : code

Result init(unsigned) { return core().enter("cuInit"); }
Result get_error_name(Result code, const char** name) {
  *name = code == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_FAKE";
  return kSuccess;
}
Result get_error_string(Result, const char** text) {
  *text = "as the test asked for";
  return kSuccess;
}
Result device_get_count(int* count) {
  *count = 1;
  return core().enter("cuDeviceGetCount");
}
Result device_get(Device* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? kSuccess : kInvalidDevice;
}
Result device_get_name(char* name, int length, Device) {
  std::strncpy(name, "stand-in for an H100", static_cast<std::size_t>(length));
  return kSuccess;
}
Result device_get_pci_bus_id(char* address, int length, Device) {
  std::strncpy(address, "0000:C1:00.0", static_cast<std::size_t>(length));
  return kSuccess;
}
Result device_get_attribute(int* value, int attribute, Device) {
  if (attribute == kAttributeMultiprocessorCount) *value = 4;
  if (attribute == kAttributeComputeCapabilityMajor) *value = 9;
  if (attribute == kAttributeComputeCapabilityMinor) *value = 0;
  return kSuccess;
}
Result primary_context_retain(Handle* context, Device) {
  *context = kContext;
  return core().enter("cuDevicePrimaryCtxRetain");
}
Result primary_context_release(Device) { return core().enter("cuDevicePrimaryCtxRelease"); }
Result context_push(Handle context) {
  if (context != kContext) return kInvalidContext;
  if (const Result code = core().enter("cuCtxPushCurrent"); code != kSuccess) return code;
  ++FakeCore::context();
  return kSuccess;
}
Result context_pop(Handle* context) {
  if (FakeCore::context() == 0) return kInvalidContext;
  --FakeCore::context();
  *context = kContext;
  return kSuccess;
}
Result exchange_capture_mode(int* mode) {
  std::swap(*mode, FakeCore::capture_mode());
  return kSuccess;
}
Result context_get_stream_priorities(int* least, int* greatest) {
  KVFERRY_FAKE_ENTER("cuCtxGetStreamPriorityRange");
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return kSuccess;
}
Result stream_create(Handle* stream, unsigned flags, int priority) {
  KVFERRY_FAKE_ENTER("cuStreamCreateWithPriority");
  if (stream == nullptr || flags != kStreamNonBlocking) return kInvalidValue;
  *stream =
      handle(core().create_stream(0, std::clamp(priority, kGreatestPriority, kLeastPriority)));
  return kSuccess;
}
Result stream_destroy(Handle stream) {
  KVFERRY_FAKE_ENTER("cuStreamDestroy");
  return core().destroy_stream(number(stream));
}
Result stream_query(Handle stream) {
  KVFERRY_FAKE_ENTER("cuStreamQuery");
  return core().query_stream(number(stream));
}
Result stream_is_capturing(Handle stream, int* status) {
  KVFERRY_FAKE_ENTER("cuStreamIsCapturing");
  *status = core().capturing(number(stream)) ? 1 : 0;
  return kSuccess;
}
Result stream_get_context(Handle stream, Handle* context) {
  KVFERRY_FAKE_ENTER("cuStreamGetCtx");
  const bool known = core().query_stream(number(stream)) != kInvalidHandle;
  *context = known ? kContext : nullptr;
  return kSuccess;
}
Result stream_wait_event(Handle stream, Handle event, unsigned) {
  KVFERRY_FAKE_ENTER("cuStreamWaitEvent");
  return core().wait_event(number(stream), number(event));
}
Result event_create(Handle* event, unsigned) {
  KVFERRY_FAKE_ENTER("cuEventCreate");
  *event = handle(core().create_event());
  return kSuccess;
}
Result event_destroy(Handle event) {
  KVFERRY_FAKE_ENTER("cuEventDestroy");
  return core().destroy_event(number(event));
}
Result event_query(Handle event) {
  KVFERRY_FAKE_ENTER("cuEventQuery");
  return core().query_event(number(event));
}
Result event_record(Handle event, Handle stream) {
  KVFERRY_FAKE_ENTER("cuEventRecord");
  return core().record_event(number(event), number(stream));
}
Result event_elapsed(float* milliseconds, Handle from, Handle to) {
  KVFERRY_FAKE_ENTER("cuEventElapsedTime");
  return core().elapsed(milliseconds, number(from), number(to));
}
Result copy_to_device(DevicePointer to, const void* from, std::size_t bytes, Handle stream) {
  KVFERRY_FAKE_ENTER("cuMemcpyHtoDAsync");
  return core().copy_in(to, number(from), bytes, number(stream));
}
Result copy_to_host(void* to, DevicePointer from, std::size_t bytes, Handle stream) {
  KVFERRY_FAKE_ENTER("cuMemcpyDtoHAsync");
  return core().copy_out(number(to), from, bytes, number(stream));
}
Result copy_batch_13000(DevicePointer* to, DevicePointer* from, std::size_t* sizes,
                        std::size_t count, CopyAttributes* attributes, std::size_t* first_runs,
                        std::size_t num_attributes, Handle stream) {
  KVFERRY_FAKE_ENTER("cuMemcpyBatchAsync");
  if (count == 0 || count > kMostBatchRuns || FakeCore::is_legacy(number(stream)) ||
      num_attributes != 1 || !all_zero(first_runs, count)) {
    return kInvalidValue;
  }
  core().note_batch(count, attributes->source_access_order);
  for (std::size_t i = 0; i < count; ++i) {
    const Result code = attributes->source_access_order == kSourceOrderAny
                            ? core().copy_in(to[i], from[i], sizes[i], number(stream))
                            : core().copy_out(to[i], from[i], sizes[i], number(stream));
    if (code != kSuccess) return code;
  }
  return kSuccess;
}
Result copy_batch_12080(DevicePointer* to, DevicePointer* from, std::size_t* sizes,
                        std::size_t count, CopyAttributes* attributes, std::size_t* first_runs,
                        std::size_t num_attributes, std::size_t* failed, Handle stream) {
  *failed = 0;
  return copy_batch_13000(to, from, sizes, count, attributes, first_runs, num_attributes, stream);
}
Result fill(DevicePointer address, unsigned char value, std::size_t bytes, Handle stream) {
  KVFERRY_FAKE_ENTER("cuMemsetD8Async");
  return core().fill(address, value, bytes, number(stream));
}
Result allocate(DevicePointer* address, std::size_t bytes) {
  KVFERRY_FAKE_ENTER("cuMemAlloc");
  std::uintptr_t allocated = 0;
  const Result code = core().allocate(&allocated, bytes);
  *address = allocated;
  return code;
}
Result free_memory(DevicePointer address) {
  KVFERRY_FAKE_ENTER("cuMemFree");
  core().drain();
  return core().free(address);
}
Result memory_get_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  KVFERRY_FAKE_ENTER("cuMemGetInfo");
  core().memory_info(free_bytes, total_bytes);
  return kSuccess;
}
Result host_register(void* address, std::size_t bytes, unsigned flags) {
  KVFERRY_FAKE_ENTER("cuMemHostRegister");
  if (flags != (kHostRegisterPortable | kHostRegisterDeviceMap)) return kInvalidValue;
  return core().register_host(number(address), bytes);
}
Result host_unregister(void* address) {
  KVFERRY_FAKE_ENTER("cuMemHostUnregister");
  core().drain();
  return core().unregister_host(number(address));
}
Result host_get_device_pointer(DevicePointer* device, void* host, unsigned) {
  KVFERRY_FAKE_ENTER("cuMemHostGetDevicePointer");
  std::uintptr_t address = 0;
  const Result code = core().device_address(number(host), &address);
  *device = address;
  return code;
}
Result module_load(Handle* module, const void* image) {
  KVFERRY_FAKE_ENTER("cuModuleLoadData");
  if (image == nullptr) return kInvalidValue;
  core().drain();
  *module = handle(core().load_module());
  return kSuccess;
}
Result module_unload(Handle module) {
  KVFERRY_FAKE_ENTER("cuModuleUnload");
  return core().unload_module(number(module));
}
Result module_get_function(Handle* function, Handle module, const char* name) {
  KVFERRY_FAKE_ENTER("cuModuleGetFunction");
  core().drain();  // kernels are loaded when they are first asked for
  *function = handle(core().function(number(module), name));
  return *function == nullptr ? kNotFound : kSuccess;
}
Result function_set_attribute(Handle, int attribute, int) {
  KVFERRY_FAKE_ENTER("cuFuncSetAttribute");
  return attribute == kFunctionAttributeMaxDynamicSharedBytes ? kSuccess : kInvalidValue;
}
Result launch(Handle function, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned,
              unsigned, Handle stream, void** parameters, void**) {
  KVFERRY_FAKE_ENTER("cuLaunchKernel");
  return core().launch(number(function), x, threads, parameters[0], number(stream));
}

struct EntryPoint {
  const char* name;
  /// The version of cudaTypedefs.h from which on the function has this form.
  int version;
  void* address;
};

template <class Function>
void* as_void(Function function) {
  return reinterpret_cast<void*>(function);
}

const EntryPoint kEntryPoints[] = {
    {"cuInit", 2000, as_void(&init)},
    {"cuGetErrorName", 6000, as_void(&get_error_name)},
    {"cuGetErrorString", 6000, as_void(&get_error_string)},
    {"cuDeviceGetCount", 2000, as_void(&device_get_count)},
    {"cuDeviceGet", 2000, as_void(&device_get)},
    {"cuDeviceGetName", 2000, as_void(&device_get_name)},
    {"cuDeviceGetPCIBusId", 4010, as_void(&device_get_pci_bus_id)},
    {"cuDeviceGetAttribute", 2000, as_void(&device_get_attribute)},
    {"cuDevicePrimaryCtxRetain", 7000, as_void(&primary_context_retain)},
    {"cuDevicePrimaryCtxRelease", 11000, as_void(&primary_context_release)},
    {"cuCtxPushCurrent", 4000, as_void(&context_push)},
    {"cuCtxPopCurrent", 4000, as_void(&context_pop)},
    {"cuCtxGetStreamPriorityRange", 5050, as_void(&context_get_stream_priorities)},
    {"cuThreadExchangeStreamCaptureMode", 10010, as_void(&exchange_capture_mode)},
    {"cuStreamCreateWithPriority", 5050, as_void(&stream_create)},
    {"cuStreamDestroy", 4000, as_void(&stream_destroy)},
    {"cuStreamQuery", 2000, as_void(&stream_query)},
    {"cuStreamIsCapturing", 10000, as_void(&stream_is_capturing)},
    {"cuStreamGetCtx", 9020, as_void(&stream_get_context)},
    {"cuStreamWaitEvent", 3020, as_void(&stream_wait_event)},
    {"cuEventCreate", 2000, as_void(&event_create)},
    {"cuEventDestroy", 4000, as_void(&event_destroy)},
    {"cuEventQuery", 2000, as_void(&event_query)},
    {"cuEventRecord", 2000, as_void(&event_record)},
    {"cuEventElapsedTime", 2000, as_void(&event_elapsed)},
    {"cuMemcpyHtoDAsync", 3020, as_void(&copy_to_device)},
    {"cuMemcpyDtoHAsync", 3020, as_void(&copy_to_host)},
    {"cuMemcpyBatchAsync", 12080, as_void(&copy_batch_12080)},
    {"cuMemcpyBatchAsync", 13000, as_void(&copy_batch_13000)},
    {"cuMemsetD8Async", 3020, as_void(&fill)},
    {"cuMemAlloc", 3020, as_void(&allocate)},
    {"cuMemFree", 3020, as_void(&free_memory)},
    {"cuMemGetInfo", 3020, as_void(&memory_get_info)},
    {"cuMemHostRegister", 6050, as_void(&host_register)},
    {"cuMemHostUnregister", 4000, as_void(&host_unregister)},
    {"cuMemHostGetDevicePointer", 3020, as_void(&host_get_device_pointer)},
    {"cuModuleLoadData", 2000, as_void(&module_load)},
    {"cuModuleUnload", 2000, as_void(&module_unload)},
    {"cuModuleGetFunction", 2000, as_void(&module_get_function)},
    {"cuFuncSetAttribute", 9000, as_void(&function_set_attribute)},
    {"cuLaunchKernel", 4000, as_void(&launch)},
};

}  // namespace

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

FakeControl* kvferry_fake_control() { return &core(); }

// For Python, which cannot call the FakeControl.
void kvferry_fake_adopt(std::uintptr_t address, std::size_t bytes) { core().adopt(address, bytes); }
void kvferry_fake_disown(std::uintptr_t address, std::size_t bytes) {
  core().disown(address, bytes);
}
std::size_t kvferry_fake_allocated_bytes() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  core().memory_info(&free_bytes, &total_bytes);
  return total_bytes - free_bytes;
}
void kvferry_fake_fail_nth(const char* function, std::uint64_t nth, int code) {
  core().fail_nth(function, nth, code);
}
void kvferry_fake_hold(int held) { core().hold(held != 0); }
void kvferry_fake_settle() { core().settle(); }

Result cuDriverGetVersion(int* version) {
  *version = core().version();
  return kSuccess;
}

Result cuGetProcAddress_v2(const char* name, void** address, int version, std::uint64_t,
                           int* found) {
  *address = nullptr;
  for (const EntryPoint& entry : kEntryPoints) {
    if (std::string_view(entry.name) == name && entry.version <= version &&
        entry.version <= core().version() && !core().hidden(name)) {
      *address = entry.address;
    }
  }
  *found = *address == nullptr ? 1 : 0;
  return *address == nullptr ? kNotFound : kSuccess;
}

Result cuLaunchHostFunc(Handle stream, void (*function)(void*), void* data) {
  KVFERRY_FAKE_ENTER("cuLaunchHostFunc");
  return core().submit(number(stream), [=] { function(data); });
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
