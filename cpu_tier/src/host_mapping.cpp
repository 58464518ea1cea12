// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/host_mapping.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include <cerrno>
#include <cstddef>
#include <limits>
#include <string>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14, asm-generic/mman-common.h.
#endif

namespace kvferry::cpu_tier {
namespace {

std::uint64_t whole_pages(std::uint64_t bytes) {
  const std::uint64_t page = HostMapping::page_bytes();
  if (bytes > std::numeric_limits<std::uint64_t>::max() - page) {
    throw ResourceError(std::to_string(bytes) + " bytes of host memory cannot be addressed");
  }
  return (bytes + page - 1) / page * page;
}

ResourceError failed(const char* step, std::uint64_t bytes, int error) {
  return ResourceError(std::string(step) + " " + std::to_string(bytes) +
                       " bytes of host memory failed: " + std::generic_category().message(error) +
                       "; make the CPU tier smaller or free memory");
}

}  // namespace

std::uint64_t HostMapping::page_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

HostMapping::HostMapping(std::uint64_t bytes) : size_bytes_(whole_pages(bytes)) {
  if (KVFERRY_FAULT_POINT("arena.map")) throw failed("mapping", size_bytes_, ENOMEM);
  void* mapped =
      ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw failed("mapping", size_bytes_, errno);
  if (::madvise(mapped, size_bytes_, MADV_DONTFORK) != 0) {
    const int error = errno;
    ::munmap(mapped, size_bytes_);
    throw failed("keeping from forked children", size_bytes_, error);
  }
  // Best effort: kernels without transparent huge pages refuse.
  static_cast<void>(::madvise(mapped, size_bytes_, MADV_HUGEPAGE));
  address_ = reinterpret_cast<std::uintptr_t>(mapped);
}

HostMapping::~HostMapping() { ::munmap(reinterpret_cast<void*>(address_), size_bytes_); }

void HostMapping::populate() {
  if (KVFERRY_FAULT_POINT("arena.populate")) throw failed("populating", size_bytes_, ENOMEM);
  int error = 0;
  do {
    const int result =
        ::madvise(reinterpret_cast<void*>(address_), size_bytes_, MADV_POPULATE_WRITE);
    error = result == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error == 0) return;
  if (error != EINVAL) throw failed("populating", size_bytes_, error);

  auto* bytes = reinterpret_cast<volatile std::byte*>(address_);
  for (std::uint64_t offset = 0; offset < size_bytes_; offset += page_bytes()) {
    bytes[offset] = std::byte{0};
  }
}

}  // namespace kvferry::cpu_tier
