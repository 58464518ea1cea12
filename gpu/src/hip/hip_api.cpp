// SPDX-License-Identifier: Apache-2.0
#include "hip/hip_api.hpp"

#include "kvferry/base/error.hpp"

#include "driver/pci_address.hpp"
#include "hip/hip_error.hpp"

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

namespace kvferry::gpu {
namespace {

template <class T>
DriverValue<T> made(hip_abi::Result code, hip_abi::Handle handle) {
  return {hip_result(code), T{reinterpret_cast<std::uintptr_t>(handle)}};
}

}  // namespace

HipApi::HipApi(HipLibrary library, int ordinal) : hip_(std::move(library)), device_(ordinal) {
  int num_devices = 0;
  require(hip_.get_device_count(&num_devices), "count the HIP devices");
  if (ordinal < 0 || ordinal >= num_devices) {
    throw ConfigError("there is no HIP device " + std::to_string(ordinal) + ": this process sees " +
                      std::to_string(num_devices) +
                      "; pass a lower number or change HIP_VISIBLE_DEVICES");
  }
  read_traits();
}

std::string HipApi::describe(int code) const {
  return std::string(hip_.get_error_name(code)) + " (" + std::to_string(code) +
         "): " + hip_.get_error_string(code);
}

DriverValue<ThreadState> HipApi::enter() {
  ThreadState before;
  const auto code = hip_.get_device(&before.device);
  if (code != hip_abi::kSuccess) return {hip_result(code), before};
  if (before.device != device_) {
    const auto changed = hip_.set_device(device_);
    if (changed != hip_abi::kSuccess) return {hip_result(changed), before};
    before.device_changed = true;
  }
  before.capture_mode = hip_abi::kCaptureModeRelaxed;
  before.capture_mode_changed =
      hip_.exchange_capture_mode(&before.capture_mode) == hip_abi::kSuccess;
  return {hip_result(hip_abi::kSuccess), before};
}

void HipApi::leave(const ThreadState& before) {
  int mode = before.capture_mode;
  if (before.capture_mode_changed) static_cast<void>(hip_.exchange_capture_mode(&mode));
  if (before.device_changed) static_cast<void>(hip_.set_device(before.device));
}

DriverValue<StreamPriorities> HipApi::stream_priorities() {
  StreamPriorities range;
  const auto code = hip_.device_get_stream_priorities(&range.least, &range.greatest);
  return {hip_result(code), range};
}

DriverValue<StreamHandle> HipApi::create_stream(int priority) {
  hip_abi::Handle stream = nullptr;
  const auto code = hip_.stream_create(&stream, hip_abi::kStreamNonBlocking, priority);
  return made<StreamHandle>(code, stream);
}

DriverResult HipApi::destroy_stream(StreamHandle stream) {
  return hip_result(hip_.stream_destroy(raw(stream)));
}

DriverResult HipApi::query_stream(StreamHandle stream) {
  return hip_result(hip_.stream_query(raw(stream)));
}

DriverValue<bool> HipApi::is_capturing(StreamHandle stream) {
  int status = hip_abi::kCaptureStatusNone;
  const auto code = hip_.stream_is_capturing(raw(stream), &status);
  if (hip_says_capturing(code)) return {hip_result(hip_abi::kSuccess), true};
  return {hip_result(code), status != hip_abi::kCaptureStatusNone};
}

DriverValue<bool> HipApi::is_ours(StreamHandle stream) {
  hip_abi::Device device = 0;
  const auto code = hip_.stream_get_device(raw(stream), &device);
  return {hip_result(code), device == device_};
}

DriverValue<EventHandle> HipApi::create_event() {
  hip_abi::Handle event = nullptr;
  const auto code = hip_.event_create(&event, hip_abi::kEventReleaseToSystem);
  return made<EventHandle>(code, event);
}

DriverResult HipApi::destroy_event(EventHandle event) {
  return hip_result(hip_.event_destroy(raw(event)));
}

DriverResult HipApi::record_event(EventHandle event, StreamHandle stream) {
  return hip_result(hip_.event_record(raw(event), raw(stream)));
}

DriverResult HipApi::query_event(EventHandle event) {
  return hip_result(hip_.event_query(raw(event)));
}

DriverResult HipApi::wait_event(StreamHandle stream, EventHandle event) {
  return hip_result(hip_.stream_wait_event(raw(stream), raw(event), 0));
}

DriverValue<std::chrono::nanoseconds> HipApi::elapsed(EventHandle from, EventHandle to) {
  float milliseconds = 0;
  const auto code = hip_.event_elapsed(&milliseconds, raw(from), raw(to));
  return {hip_result(code), std::chrono::nanoseconds(std::llround(milliseconds * 1e6))};
}

DriverResult HipApi::register_host(std::uintptr_t address, std::uint64_t bytes) {
  return hip_result(hip_.host_register(
      pointer(address), bytes, hip_abi::kHostRegisterPortable | hip_abi::kHostRegisterMapped));
}

DriverResult HipApi::unregister_host(std::uintptr_t address) {
  return hip_result(hip_.host_unregister(pointer(address)));
}

DriverValue<std::uintptr_t> HipApi::host_device_address(std::uintptr_t address) {
  void* known_by = nullptr;
  const auto code = hip_.host_get_device_pointer(&known_by, pointer(address), 0);
  return {hip_result(code), reinterpret_cast<std::uintptr_t>(known_by)};
}

DriverValue<std::uintptr_t> HipApi::allocate(std::uint64_t bytes) {
  void* memory = nullptr;
  const auto code = hip_.allocate(&memory, bytes);
  return {hip_result(code), reinterpret_cast<std::uintptr_t>(memory)};
}

DriverResult HipApi::free(std::uintptr_t address) {
  return hip_result(hip_.free(pointer(address)));
}

DriverValue<MemoryInfo> HipApi::memory_info() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const auto code = hip_.memory_get_info(&free_bytes, &total_bytes);
  return {hip_result(code), {free_bytes, total_bytes}};
}

void HipApi::read_traits() {
  traits_.kind = BackendKind::kHip;
  std::array<char, 256> name{};
  require(hip_.device_get_name(name.data(), static_cast<int>(name.size()) - 1, device_),
          "ask for the name of a HIP device");
  traits_.device_name = name.data();
  if (hip_.device_get_pci_bus_id(name.data(), static_cast<int>(name.size()), device_) ==
      hip_abi::kSuccess) {
    traits_.pci_address = pci_address_of(name.data());
  }
  alignas(8) std::array<char, hip_abi::kPropertiesRoom> properties{};
  require(hip_.get_device_properties(properties.data(), device_),
          "ask for the properties of a HIP device");
  // "gfx90a:sramecc+:xnack-": the part after the first colon lists modes.
  const std::string_view field(properties.data() + hip_abi::kPropertiesArchitecture,
                               hip_abi::kPropertiesArchitectureBytes);
  traits_.architecture = field.substr(0, field.find_first_of(std::string_view(":\0", 2)));
  traits_.num_multiprocessors = attribute(hip_abi::kAttributeMultiprocessorCount);
  traits_.driver = "HIP " + HipLibrary::version_text(hip_.version());
  traits_.max_batch_runs = hip_.copy_batch == nullptr ? 0 : kMaxBatchRuns;
  traits_.batches_by_default = false;
}

int HipApi::attribute(int which) const {
  int value = 0;
  require(hip_.device_get_attribute(&value, which, device_),
          "ask for attribute " + std::to_string(which) + " of a HIP device");
  return value;
}

void HipApi::require(hip_abi::Result code, const std::string& what) const {
  if (code != hip_abi::kSuccess) throw DeviceError("cannot " + what + ": " + describe(code));
}

}  // namespace kvferry::gpu
