// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_device.hpp"

#include "kvferry/base/graveyard.hpp"

#include "driver/driver_event.hpp"
#include "driver/driver_memory.hpp"
#include "driver/driver_scope.hpp"
#include "driver/driver_stream.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::gpu {
namespace {

// Handles up to this one name default streams, of whichever context is current.
constexpr std::uintptr_t kLastDefaultStream = 2;
constexpr int kFirstOfCuda90 = 90;

DeviceFamily family(const DriverTraits& driver) {
  if (driver.kind == BackendKind::kHip) return DeviceFamily::kHip;
  return driver.compute_capability < kFirstOfCuda90 ? DeviceFamily::kCudaOlder
                                                    : DeviceFamily::kCuda90;
}

}  // namespace

DriverDevice::~DriverDevice() {
  if (context_->loss().in_doubt()) bury(std::move(context_));
}

BackendKind DriverDevice::kind() const { return context_->api().traits().kind; }

std::string DriverDevice::description() const {
  const DriverTraits& traits = context_->api().traits();
  return traits.device_name + ", " + traits.architecture + ", " +
         std::to_string(traits.num_multiprocessors) + " multiprocessors, " + traits.driver + ", " +
         (traits.max_batch_runs == 0 ? "no batch call" : "batch call");
}

DeviceTraits DriverDevice::traits() const {
  const DriverTraits& driver = context_->api().traits();
  return {family(driver), std::min(driver.max_batch_runs, kMaxBatchRuns),
          context_->pack().available(), driver.batches_by_default,
          static_cast<std::uint32_t>(driver.num_multiprocessors)};
}

MemoryInfo DriverDevice::memory_info() const {
  const DriverScope scope(*context_);
  const auto info = context_->api().memory_info();
  context_->check(info.result, "ask for the device's memory");
  return info.value;
}

std::unique_ptr<Stream> DriverDevice::create_stream(StreamPriority priority) {
  const DriverScope scope(*context_);
  context_->throw_if_lost();
  int number = kNormalPriority;
  if (priority == StreamPriority::kHigh) {
    const auto priorities = context_->api().stream_priorities();
    context_->check(priorities.result, "ask for the priorities of streams");
    number = priorities.value.greatest;
  }
  const auto stream = context_->api().create_stream(number);
  context_->check(stream.result, "create a stream");
  return std::make_unique<DriverStream>(*context_, stream.value, DriverStream::Ownership::kOwned);
}

std::unique_ptr<Stream> DriverDevice::view_stream(std::uintptr_t native_handle) {
  const auto handle = StreamHandle{native_handle};
  const DriverScope scope(*context_);
  context_->throw_if_lost();
  if (native_handle > kLastDefaultStream) {
    const auto ours = context_->api().is_ours(handle);
    context_->check(ours.result, "view a stream of the engine");
    if (!ours.value) {
      throw DeviceError("the stream to view belongs to another device or context than " +
                        context_->api().traits().device_name +
                        "'s primary one; pass the stream of the device that holds the KV cache");
    }
  }
  return std::make_unique<DriverStream>(*context_, handle, DriverStream::Ownership::kView);
}

std::unique_ptr<Event> DriverDevice::create_event() {
  context_->throw_if_lost();
  return std::make_unique<DriverEvent>(*context_);
}

void DriverDevice::prepare(const BlockGeometry& geometry) {
  const DriverScope scope(*context_);
  context_->throw_if_lost();
  context_->pack().prepare(geometry);
}

void DriverDevice::forget(const BlockGeometry& geometry) { context_->pack().forget(geometry); }

std::unique_ptr<DeviceBuffer> DriverDevice::allocate(std::uint64_t bytes) {
  return std::make_unique<DriverBuffer>(*context_, bytes);
}

std::unique_ptr<HostRegistration> DriverDevice::register_host(void* address, std::uint64_t bytes) {
  return std::make_unique<DriverRegistration>(*context_, reinterpret_cast<std::uintptr_t>(address),
                                              bytes);
}

}  // namespace kvferry::gpu
