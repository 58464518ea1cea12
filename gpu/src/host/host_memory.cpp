// SPDX-License-Identifier: Apache-2.0
#include "host/host_memory.hpp"

#include "kvferry/base/graveyard.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "range_text.hpp"

#include <fstream>
#include <limits>
#include <string>
#include <unistd.h>
#include <utility>

namespace kvferry::gpu {
namespace {

[[noreturn]] void throw_no_memory(std::uint64_t bytes, std::uint64_t free_bytes) {
  throw ResourceError("cannot allocate " + std::to_string(bytes) +
                      " bytes of host device memory; " + std::to_string(free_bytes) +
                      " bytes are free");
}

}  // namespace

MemoryInfo host_memory_info() {
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  MemoryInfo info;
  info.total_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes;
  info.free_bytes = static_cast<std::uint64_t>(::sysconf(_SC_AVPHYS_PAGES)) * page_bytes;

  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  while (meminfo >> key >> kibibytes) {
    if (key == "MemAvailable:") {
      info.free_bytes = kibibytes * 1024;
      break;
    }
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return info;
}

// What the kernel cannot back is refused here: it overcommits, and a device does not.
HostDeviceBuffer::HostDeviceBuffer(HostContext& context, std::uint64_t bytes)
    : context_(context), bytes_(bytes) {
  context_.loss->throw_if_lost();
  KVFERRY_PAUSE_POINT("gpu.host.allocate");
  const std::uint64_t free_bytes = host_memory_info().free_bytes;
  if (KVFERRY_FAULT_POINT("gpu.host.allocate") || bytes > free_bytes) {
    throw_no_memory(bytes, free_bytes);
  }
  memory_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow)));
  if (memory_ == nullptr) throw_no_memory(bytes, free_bytes);
  ++context_.num_buffers;
}

// Submitted work may still write it while memory is in doubt.
HostDeviceBuffer::~HostDeviceBuffer() {
  if (context_.loss->in_doubt()) bury(std::move(memory_));
  --context_.num_buffers;
}

std::uintptr_t HostDeviceBuffer::address() const {
  return reinterpret_cast<std::uintptr_t>(memory_.get());
}

HostMemoryRegistration::HostMemoryRegistration(HostContext& context, std::uintptr_t address,
                                               std::uint64_t bytes)
    : context_(context), address_(address), bytes_(bytes) {
  context_.loss->throw_if_lost();
  KVFERRY_PAUSE_POINT("gpu.host.register");
  if (KVFERRY_FAULT_POINT("gpu.host.register")) {
    throw DeviceError("cannot register " + range_text(address, bytes) +
                      ": failed by request of the test");
  }
  context_.registrations.add(address, bytes);
}

HostMemoryRegistration::~HostMemoryRegistration() {
  if (context_.injector != nullptr) context_.injector->forget(address_, bytes_);
  context_.registrations.remove(address_);
}

}  // namespace kvferry::gpu
