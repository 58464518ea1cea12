// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_api.hpp"

#include "kvferry/base/error.hpp"

#include "cuda/cuda_error.hpp"
#include "cuda/cuda_traits.hpp"

#include <cmath>
#include <utility>

namespace kvferry::gpu {
namespace {

template <class T>
DriverValue<T> made(cuda_abi::Result code, cuda_abi::Handle handle) {
  return {cuda_result(code), T{reinterpret_cast<std::uintptr_t>(handle)}};
}

void* host_pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

CudaApi::CudaApi(CudaLibrary library, int ordinal) : cuda_(std::move(library)) {
  int num_devices = 0;
  cuda_.require(cuda_.device_get_count(&num_devices), "count the CUDA devices");
  if (ordinal < 0 || ordinal >= num_devices) {
    throw ConfigError("there is no CUDA device " + std::to_string(ordinal) +
                      ": this process sees " + std::to_string(num_devices) +
                      "; pass a lower number or change CUDA_VISIBLE_DEVICES");
  }
  cuda_.require(cuda_.device_get(&device_, ordinal), "open CUDA device " + std::to_string(ordinal));
  traits_ = cuda_traits(cuda_, device_);
  cuda_.require(cuda_.primary_context_retain(&context_, device_),
                "retain the primary context of CUDA device " + std::to_string(ordinal));
}

CudaApi::~CudaApi() { static_cast<void>(cuda_.primary_context_release(device_)); }

std::string CudaApi::describe(int code) const { return cuda_.describe(code); }

DriverValue<ThreadState> CudaApi::enter() {
  ThreadState before;
  const auto code = cuda_.context_push(context_);
  if (code != cuda_abi::kSuccess) return {cuda_result(code), before};
  before.device_changed = true;
  before.capture_mode = cuda_abi::kCaptureModeRelaxed;
  before.capture_mode_changed =
      cuda_.exchange_capture_mode(&before.capture_mode) == cuda_abi::kSuccess;
  return {cuda_result(cuda_abi::kSuccess), before};
}

void CudaApi::leave(const ThreadState& before) {
  int mode = before.capture_mode;
  if (before.capture_mode_changed) static_cast<void>(cuda_.exchange_capture_mode(&mode));
  cuda_abi::Handle popped = nullptr;
  static_cast<void>(cuda_.context_pop(&popped));
}

DriverValue<StreamPriorities> CudaApi::stream_priorities() {
  StreamPriorities range;
  const auto code = cuda_.context_get_stream_priorities(&range.least, &range.greatest);
  return {cuda_result(code), range};
}

DriverValue<StreamHandle> CudaApi::create_stream(int priority) {
  cuda_abi::Handle stream = nullptr;
  const auto code = cuda_.stream_create(&stream, cuda_abi::kStreamNonBlocking, priority);
  return made<StreamHandle>(code, stream);
}

DriverResult CudaApi::destroy_stream(StreamHandle stream) {
  return cuda_result(cuda_.stream_destroy(raw(stream)));
}

DriverResult CudaApi::query_stream(StreamHandle stream) {
  return cuda_result(cuda_.stream_query(raw(stream)));
}

DriverValue<bool> CudaApi::is_capturing(StreamHandle stream) {
  int status = cuda_abi::kCaptureStatusNone;
  const auto code = cuda_.stream_is_capturing(raw(stream), &status);
  if (cuda_says_capturing(code)) return {cuda_result(cuda_abi::kSuccess), true};
  return {cuda_result(code), status != cuda_abi::kCaptureStatusNone};
}

DriverValue<bool> CudaApi::is_ours(StreamHandle stream) {
  cuda_abi::Handle context = nullptr;
  const auto code = cuda_.stream_get_context(raw(stream), &context);
  return {cuda_result(code), context == context_};
}

DriverValue<EventHandle> CudaApi::create_event() {
  cuda_abi::Handle event = nullptr;
  const auto code = cuda_.event_create(&event, cuda_abi::kEventDefault);
  return made<EventHandle>(code, event);
}

DriverResult CudaApi::destroy_event(EventHandle event) {
  return cuda_result(cuda_.event_destroy(raw(event)));
}

DriverResult CudaApi::record_event(EventHandle event, StreamHandle stream) {
  return cuda_result(cuda_.event_record(raw(event), raw(stream)));
}

DriverResult CudaApi::query_event(EventHandle event) {
  return cuda_result(cuda_.event_query(raw(event)));
}

DriverResult CudaApi::wait_event(StreamHandle stream, EventHandle event) {
  return cuda_result(cuda_.stream_wait_event(raw(stream), raw(event), 0));
}

DriverValue<std::chrono::nanoseconds> CudaApi::elapsed(EventHandle from, EventHandle to) {
  float milliseconds = 0;
  const auto code = cuda_.event_elapsed(&milliseconds, raw(from), raw(to));
  return {cuda_result(code), std::chrono::nanoseconds(std::llround(milliseconds * 1e6))};
}

DriverResult CudaApi::register_host(std::uintptr_t address, std::uint64_t bytes) {
  return cuda_result(
      cuda_.host_register(host_pointer(address), bytes,
                          cuda_abi::kHostRegisterPortable | cuda_abi::kHostRegisterDeviceMap));
}

DriverResult CudaApi::unregister_host(std::uintptr_t address) {
  return cuda_result(cuda_.host_unregister(host_pointer(address)));
}

DriverValue<std::uintptr_t> CudaApi::host_device_address(std::uintptr_t address) {
  cuda_abi::DevicePointer known_by = 0;
  const auto code = cuda_.host_get_device_pointer(&known_by, host_pointer(address), 0);
  return {cuda_result(code), known_by};
}

DriverValue<std::uintptr_t> CudaApi::allocate(std::uint64_t bytes) {
  cuda_abi::DevicePointer memory = 0;
  const auto code = cuda_.allocate(&memory, bytes);
  return {cuda_result(code), memory};
}

DriverResult CudaApi::free(std::uintptr_t address) { return cuda_result(cuda_.free(address)); }

DriverValue<MemoryInfo> CudaApi::memory_info() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const auto code = cuda_.memory_get_info(&free_bytes, &total_bytes);
  return {cuda_result(code), {free_bytes, total_bytes}};
}

}  // namespace kvferry::gpu
