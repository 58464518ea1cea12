// SPDX-License-Identifier: Apache-2.0
#include "measure/host_memory.hpp"

#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include "measure/numa.hpp"

namespace kvferry::bench {
namespace {

std::uint64_t affordable(std::uint64_t bytes) {
  cpu_tier::check_memory_budget(bytes);
  return bytes;
}

}  // namespace

const char* to_string(HostMemoryKind kind) {
  return kind == HostMemoryKind::kPinned ? "pinned" : "pageable";
}

HostMemory::HostMemory(gpu::Device& device, std::uint64_t bytes, HostMemoryKind kind,
                       std::optional<std::uint32_t> numa_node)
    : bytes_(bytes), mapping_(affordable(bytes)) {
  if (numa_node) prefer_node(mapping_.bytes(), *numa_node);
  mapping_.populate();
  if (numa_node) check_node(mapping_.bytes(), *numa_node);
  if (kind == HostMemoryKind::kPinned) {
    registration_ = device.register_host(mapping_.bytes().data(), mapping_.size_bytes());
  }
}

std::span<std::byte> HostMemory::bytes() const { return mapping_.bytes().first(bytes_); }

std::uintptr_t HostMemory::device_address() const {
  return registration_ ? registration_->device_address() : mapping_.address();
}

}  // namespace kvferry::bench
