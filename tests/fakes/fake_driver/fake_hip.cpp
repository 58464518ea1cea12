// SPDX-License-Identifier: Apache-2.0
// The stand-in for libamdhip64.so.7: two gfx90a that are the host.
#include "fake_core.hpp"
#include "hip/hip_abi.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

namespace {

using namespace kvferry::fakes;         // NOLINT(google-build-using-namespace)
using namespace kvferry::gpu::hip_abi;  // NOLINT(google-build-using-namespace)

constexpr int kFirstVersion = 70'151'831;
constexpr int kFirstWithAttributes = 71'300'000;
constexpr std::size_t kMostBatchRuns = 4096;
constexpr int kNumDevices = 2;
constexpr int kLeastPriority = 1;
constexpr int kGreatestPriority = -1;
/// Added to the host's address of registered memory: on HIP the two may differ.
constexpr std::uintptr_t kAlias = std::uintptr_t{1} << 60U;

// Never destroyed: work may still run when the process ends.
FakeCore& core() {
  static auto* const kCore = new FakeCore(kFirstVersion, kAlias);
  return *kCore;
}

std::uintptr_t number(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }
Handle handle(std::uintptr_t number) { return reinterpret_cast<Handle>(number); }

#define KVFERRY_FAKE_ENTER(function)                                \
  if (const Result code = core().enter(function); code != kSuccess) \
  return code == kSkipped ? kSuccess : code

/// Of calls whose stream has to be one of the thread's current device.
Result enter_on(const char* function, Handle stream) {
  const Result code = core().enter(function);
  if (code != kSuccess) return code;
  const int current = FakeCore::context();
  return core().stream_device(number(stream), current) == current ? kSuccess : kInvalidHandle;
}

#define KVFERRY_FAKE_ENTER_ON(function, stream)                         \
  if (const Result code = enter_on(function, stream); code != kSuccess) \
  return code == kSkipped ? kSuccess : code

}  // namespace

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

FakeControl* kvferry_fake_control() { return &core(); }

Result hipRuntimeGetVersion(int* version) {
  *version = core().version();
  return kSuccess;
}
Result hipInit(unsigned) { return core().enter("hipInit"); }
const char* hipGetErrorName(Result code) {
  return code == kIllegalAddress ? "hipErrorIllegalAddress" : "hipErrorFake";
}
const char* hipGetErrorString(Result) { return "as the test asked for"; }
Result hipGetDeviceCount(int* count) {
  *count = kNumDevices;
  return core().enter("hipGetDeviceCount");
}
Result hipDeviceGetName(char* name, int length, Device) {
  std::strncpy(name, "stand-in for an MI250", static_cast<std::size_t>(length));
  return kSuccess;
}
Result hipDeviceGetPCIBusId(char* address, int length, Device) {
  std::strncpy(address, "0000:C1:00.0", static_cast<std::size_t>(length));
  return kSuccess;
}
Result hipDeviceGetAttribute(int* value, int attribute, Device) {
  if (attribute != kAttributeMultiprocessorCount) return kInvalidValue;
  *value = 4;
  return kSuccess;
}
Result hipGetDevicePropertiesR0600(void* properties, int) {
  const std::string name = core().architecture() + ":sramecc+:xnack-";
  std::strcpy(static_cast<char*>(properties) + kPropertiesArchitecture, name.c_str());
  return kSuccess;
}
Result hipGetDevice(int* device) {
  KVFERRY_FAKE_ENTER("hipGetDevice");
  *device = FakeCore::context();
  return kSuccess;
}
Result hipSetDevice(int device) {
  KVFERRY_FAKE_ENTER("hipSetDevice");
  if (device < 0 || device >= kNumDevices) return kInvalidDevice;
  FakeCore::context() = device;
  return kSuccess;
}
Result hipThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, FakeCore::capture_mode());
  return kSuccess;
}
Result hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  KVFERRY_FAKE_ENTER("hipDeviceGetStreamPriorityRange");
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return kSuccess;
}
Result hipStreamCreateWithPriority(Handle* stream, unsigned flags, int priority) {
  KVFERRY_FAKE_ENTER("hipStreamCreateWithPriority");
  if (stream == nullptr || flags != kStreamNonBlocking) return kInvalidValue;
  const int clamped = std::clamp(priority, kGreatestPriority, kLeastPriority);
  *stream = handle(core().create_stream(FakeCore::context(), clamped));
  return kSuccess;
}
Result hipStreamGetDevice(Handle stream, Device* device) {
  KVFERRY_FAKE_ENTER("hipStreamGetDevice");
  *device = core().stream_device(number(stream), FakeCore::context());
  return core().query_stream(number(stream)) == kInvalidHandle ? kInvalidHandle : kSuccess;
}
Result hipEventCreateWithFlags(Handle* event, unsigned flags) {
  KVFERRY_FAKE_ENTER("hipEventCreateWithFlags");
  if (flags != kEventReleaseToSystem) return kInvalidValue;
  *event = handle(core().create_event());
  return kSuccess;
}
Result hipMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, Handle stream) {
  KVFERRY_FAKE_ENTER_ON("hipMemcpyAsync", stream);
  return kind == kCopyToDevice ? core().copy_in(number(to), number(from), bytes, number(stream))
                               : core().copy_out(number(to), number(from), bytes, number(stream));
}
Result hipMemcpyBatchAsync(void** to, void** from, std::size_t* sizes, std::size_t count,
                           CopyAttributes* attributes, std::size_t* first_runs,
                           std::size_t num_attributes, std::size_t* failed, Handle stream) {
  KVFERRY_FAKE_ENTER_ON("hipMemcpyBatchAsync", stream);
  const bool takes_attributes = core().version() >= kFirstWithAttributes;
  *failed = 0;
  if (count == 0 || count > kMostBatchRuns || FakeCore::is_legacy(number(stream)) ||
      (num_attributes != 0 && (!takes_attributes || !all_zero(first_runs, count)))) {
    return kInvalidValue;
  }
  core().note_batch(count, num_attributes == 0 ? 0 : attributes->source_access_order);
  for (std::size_t i = 0; i < count; ++i) {
    const bool loads = number(to[i]) < kAlias;
    const Result code =
        loads ? core().copy_in(number(to[i]), number(from[i]), sizes[i], number(stream))
              : core().copy_out(number(to[i]), number(from[i]), sizes[i], number(stream));
    if (code != kSuccess) return code;
  }
  return kSuccess;
}
Result hipMemsetAsync(void* address, int value, std::size_t bytes, Handle stream) {
  KVFERRY_FAKE_ENTER_ON("hipMemsetAsync", stream);
  return core().fill(number(address), value, bytes, number(stream));
}
Result hipMalloc(void** address, std::size_t bytes) {
  KVFERRY_FAKE_ENTER("hipMalloc");
  std::uintptr_t allocated = 0;
  const Result code = core().allocate(&allocated, bytes);
  *address = handle(allocated);
  return code;
}
Result hipFree(void* address) {
  KVFERRY_FAKE_ENTER("hipFree");
  core().drain();
  return core().free(number(address));
}
Result hipHostRegister(void* address, std::size_t bytes, unsigned flags) {
  KVFERRY_FAKE_ENTER("hipHostRegister");
  if (flags != (kHostRegisterPortable | kHostRegisterMapped)) return kInvalidValue;
  return core().register_host(number(address), bytes);
}
Result hipHostGetDevicePointer(void** device, void* host, unsigned) {
  KVFERRY_FAKE_ENTER("hipHostGetDevicePointer");
  std::uintptr_t address = 0;
  const Result code = core().device_address(number(host), &address);
  *device = handle(address);
  return code;
}
Result hipStreamDestroy(Handle stream) {
  KVFERRY_FAKE_ENTER("hipStreamDestroy");
  return core().destroy_stream(number(stream));
}
Result hipStreamQuery(Handle stream) {
  KVFERRY_FAKE_ENTER("hipStreamQuery");
  return core().query_stream(number(stream));
}
Result hipStreamIsCapturing(Handle stream, int* status) {
  KVFERRY_FAKE_ENTER("hipStreamIsCapturing");
  *status = core().capturing(number(stream)) ? 1 : 0;
  return kSuccess;
}
Result hipStreamWaitEvent(Handle stream, Handle event, unsigned) {
  KVFERRY_FAKE_ENTER_ON("hipStreamWaitEvent", stream);
  return core().wait_event(number(stream), number(event));
}
Result hipEventDestroy(Handle event) {
  KVFERRY_FAKE_ENTER("hipEventDestroy");
  return core().destroy_event(number(event));
}
Result hipEventQuery(Handle event) {
  KVFERRY_FAKE_ENTER("hipEventQuery");
  return core().query_event(number(event));
}
Result hipEventRecord(Handle event, Handle stream) {
  KVFERRY_FAKE_ENTER_ON("hipEventRecord", stream);
  return core().record_event(number(event), number(stream));
}
Result hipEventElapsedTime(float* milliseconds, Handle from, Handle to) {
  KVFERRY_FAKE_ENTER("hipEventElapsedTime");
  return core().elapsed(milliseconds, number(from), number(to));
}
Result hipMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  KVFERRY_FAKE_ENTER("hipMemGetInfo");
  core().memory_info(free_bytes, total_bytes);
  return kSuccess;
}
Result hipHostUnregister(void* address) {
  KVFERRY_FAKE_ENTER("hipHostUnregister");
  core().drain();
  return core().unregister_host(number(address));
}
Result hipModuleLoadData(Handle* module, const void* image) {
  KVFERRY_FAKE_ENTER("hipModuleLoadData");
  if (image == nullptr) return kInvalidValue;
  core().drain();
  *module = handle(core().load_module());
  return kSuccess;
}
Result hipModuleUnload(Handle module) {
  KVFERRY_FAKE_ENTER("hipModuleUnload");
  return core().unload_module(number(module));
}
Result hipModuleGetFunction(Handle* function, Handle module, const char* name) {
  KVFERRY_FAKE_ENTER("hipModuleGetFunction");
  core().drain();
  *function = handle(core().function(number(module), name));
  return *function == nullptr ? kNotFound : kSuccess;
}
Result hipModuleLaunchKernel(Handle function, unsigned x, unsigned, unsigned, unsigned threads,
                             unsigned, unsigned, unsigned, Handle stream, void** parameters,
                             void**) {
  KVFERRY_FAKE_ENTER_ON("hipModuleLaunchKernel", stream);
  return core().launch(number(function), x, threads, parameters[0], number(stream));
}
// hipRTC, which ROCm once had in this library: its programs are made of nothing.
int hiprtcCreateProgram(void** program, const char* source, const char*, int, const char**,
                        const char**) {
  *program = handle(1);
  return std::string_view(source).find("kvferry_gather") == std::string_view::npos ? 1 : 0;
}
int hiprtcCompileProgram(void*, int num_options, const char** options) {
  const Result code = core().enter("hiprtcCompileProgram");
  if (code != kSuccess) return code;
  return num_options > 0 && options[0] == "--offload-arch=" + core().architecture() ? 0 : 1;
}
int hiprtcGetCodeSize(void*, std::size_t* size) {
  *size = 8;
  return 0;
}
int hiprtcGetCode(void*, char* code) {
  std::memset(code, 1, 8);
  return 0;
}
int hiprtcGetProgramLogSize(void*, std::size_t* size) {
  *size = 32;
  return 0;
}
int hiprtcGetProgramLog(void*, char* log) {
  std::strcpy(log, "no such processor\nand more");
  return 0;
}
int hiprtcDestroyProgram(void** program) {
  *program = nullptr;
  return 0;
}
Result hipLaunchHostFunc(Handle stream, void (*function)(void*), void* data) {
  KVFERRY_FAKE_ENTER_ON("hipLaunchHostFunc", stream);
  return core().submit(number(stream), [=] { function(data); });
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
