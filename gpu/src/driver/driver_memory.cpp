// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_memory.hpp"

#include "driver/driver_context.hpp"
#include "driver/driver_scope.hpp"
#include "range_text.hpp"

#include <algorithm>
#include <string>

namespace kvferry::gpu {

DriverBuffer::DriverBuffer(DriverContext& context, std::uint64_t bytes)
    : context_(context), bytes_(bytes) {
  const DriverScope scope(context_);
  context_.throw_if_lost();
  // The drivers refuse to allocate 0 bytes.
  const auto allocated = context_.api().allocate(std::max<std::uint64_t>(bytes, 1));
  if (!context_.note(allocated.result, "allocate device memory").ok()) {
    context_.throw_if_lost();
    const auto memory = context_.api().memory_info();
    throw ResourceError("cannot allocate " + std::to_string(bytes) + " bytes of device memory; " +
                        (memory.result.ok()
                             ? std::to_string(memory.value.free_bytes) + " bytes are free"
                             : std::string("the device cannot tell how many are free")) +
                        ": " + context_.api().describe(allocated.result.code));
  }
  address_ = allocated.value;
  ++context_.num_buffers;
}

DriverBuffer::~DriverBuffer() {
  {
    const DriverScope scope(context_);
    if (!context_.lost()) {
      static_cast<void>(context_.note(context_.api().free(address_), "free device memory"));
    }
  }
  --context_.num_buffers;
}

DriverRegistration::DriverRegistration(DriverContext& context, std::uintptr_t address,
                                       std::uint64_t bytes)
    : context_(context), address_(address) {
  context_.throw_if_lost();
  // The range is added first, so that two threads cannot register the same one.
  context_.host_ranges().add(address, bytes);
  bool pinned = false;
  const DriverScope scope(context_);
  try {
    const std::string what = "register " + range_text(address, bytes);
    if (bytes >= kTooLargeBytes) {
      throw DeviceError("cannot " + what + ": drivers fail from " +
                        std::to_string(kTooLargeBytes >> 30U) +
                        " GiB on; register it in smaller pieces");
    }
    context_.check(context_.api().register_host(address, bytes), what.c_str());
    pinned = true;
    const auto known_by = context_.api().host_device_address(address);
    context_.check(known_by.result, "ask for the device address of registered memory");
    device_address_ = known_by.value;
    context_.device_ranges().add(device_address_, bytes);
  } catch (const DeviceError&) {
    if (pinned) static_cast<void>(context_.api().unregister_host(address));
    context_.host_ranges().remove(address);
    throw;
  }
}

DriverRegistration::~DriverRegistration() {
  context_.device_ranges().remove(device_address_);
  {
    const DriverScope scope(context_);
    if (!context_.lost()) {
      static_cast<void>(
          context_.note(context_.api().unregister_host(address_), "unregister host memory"));
    }
  }
  context_.host_ranges().remove(address_);
}

}  // namespace kvferry::gpu
