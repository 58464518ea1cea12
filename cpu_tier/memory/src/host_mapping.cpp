// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/host_mapping.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/rounded_up.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/base/without_forks.hpp"
#include "kvferry/cpu_tier/memory/shared_file.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <limits>
#include <string>
#include <sys/mman.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14, asm-generic/mman-common.h.
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1, asm-generic/mman-common.h.
#endif

namespace kvferry::cpu_tier {
namespace {

std::uint64_t whole_pages(std::uint64_t bytes, PageKind pages) {
  // The destructor and the search for an aligned start add at most two huge pages.
  if (bytes > std::numeric_limits<std::uint64_t>::max() - 2 * huge_page_bytes()) {
    throw ResourceError(std::to_string(bytes) + " bytes of host memory cannot be addressed");
  }
  return rounded_up(bytes,
                    pages == PageKind::kPool ? huge_page_bytes() : HostMapping::page_bytes());
}

ResourceError failed(const char* step, std::uint64_t bytes, int error) {
  return ResourceError(std::string(step) + " " + std::to_string(bytes) +
                       " bytes of host memory failed: " + std::generic_category().message(error) +
                       "; make the CPU tier smaller or free memory");
}

// The tries are a millisecond apart, so they last about a second.
constexpr int kMostTries = 1000;

/// The error, or 0. Pages that one try populated stay populated for the next one.
int populated(std::span<std::byte> part) {
  for (int num_tries = 0;;) {
    if (::madvise(part.data(), part.size(), MADV_POPULATE_WRITE) == 0) return 0;
    if (errno == EINTR) continue;
    if (errno != EAGAIN || ++num_tries == kMostTries) return errno;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

std::uint64_t HostMapping::page_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

HostMapping::HostMapping(std::uint64_t bytes, PageKind pages) : pages_(pages) {
  const std::uint64_t size = whole_pages(bytes, pages);
  if (KVFERRY_FAULT_POINT("arena.map")) throw failed("mapping", size, ENOMEM);
  const bool of_pool = pages == PageKind::kPool;
  // The pool's pages are aligned anyway. Other mappings get one huge page more, to find an aligned
  // start.
  const std::uint64_t mapped_bytes = of_pool ? size : size + huge_page_bytes();
  void* const mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | (of_pool ? MAP_HUGETLB : 0), -1, 0);
  if (mapped == MAP_FAILED) throw failed("mapping", size, errno);
  mapped_ = {static_cast<std::byte*>(mapped), mapped_bytes};
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  bytes_ = mapped_.subspan(rounded_up(begin, huge_page_bytes()) - begin, size);
  keep_from_children();
  // Best effort: kernels without transparent huge pages refuse.
  if (!of_pool) {
    static_cast<void>(::madvise(mapped, mapped_bytes,
                                pages == PageKind::kTransparent ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
  }
}

HostMapping::HostMapping(const SharedFile& file) : HostMapping(file, 0, file.size_bytes()) {}

HostMapping::HostMapping(const SharedFile& file, std::uint64_t offset, std::uint64_t bytes)
    : pages_(file.pages()), of_file_(true) {
  KVFERRY_CHECK(offset % file.page_bytes() == 0 && bytes % file.page_bytes() == 0 && bytes > 0 &&
                    offset <= file.size_bytes() && bytes <= file.size_bytes() - offset,
                "bytes from " + std::to_string(offset) +
                    " on are not a part of whole pages: " + std::to_string(bytes));
  const std::uint64_t size = bytes;
  const std::uint64_t unit = std::max(huge_page_bytes(), file.page_bytes());
  // This reserves addresses only. The file is mapped at the first one that a huge page can start
  // at.
  void* const mapped =
      ::mmap(nullptr, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw failed("mapping", size, errno);
  mapped_ = {static_cast<std::byte*>(mapped), size + unit};
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  bytes_ = mapped_.subspan(rounded_up(begin, unit) - begin, size);
  int error = 0;
  {
    // A child's copy of the mapping would keep the file's locks.
    const WithoutForks section;
    if (::mmap(bytes_.data(), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
               file.descriptor(), static_cast<off_t>(offset)) == MAP_FAILED ||
        ::madvise(mapped_.data(), mapped_.size(), MADV_DONTFORK) != 0) {
      error = errno;
      ::munmap(mapped_.data(), mapped_.size());
    }
  }
  if (error != 0) throw failed("mapping, and keeping from forked children,", size, error);
  // Best effort: the kernel's shmem_enabled also decides what shared memory gets.
  if (pages_ == PageKind::kTransparent) {
    static_cast<void>(::madvise(bytes_.data(), size, MADV_HUGEPAGE));
  }
}

void HostMapping::keep_from_children() {
  if (::madvise(mapped_.data(), mapped_.size(), MADV_DONTFORK) == 0) return;
  const int error = errno;
  ::munmap(mapped_.data(), mapped_.size());
  throw failed("keeping from forked children", bytes_.size(), error);
}

HostMapping::~HostMapping() { ::munmap(mapped_.data(), mapped_.size()); }

void HostMapping::populate(std::span<std::byte> part) const {
  if (KVFERRY_FAULT_POINT("arena.populate")) throw failed("populating", part.size(), ENOMEM);
  const int error = populated(part);
  if (error == 0) return;
  if (error == EAGAIN) {
    throw failed("populating, while the kernel was short of a resource for a second,", part.size(),
                 error);
  }
  if (error != EINVAL) throw failed("populating", part.size(), error);

  const auto* bytes = static_cast<volatile std::byte*>(part.data());
  for (std::uint64_t offset = 0; offset < part.size(); offset += page_bytes()) {
    // Other processes may use a file's pages, and a read makes pages resident as well.
    if (of_file_) {
      static_cast<void>(bytes[offset]);
    } else {
      // Earlier writes must stay, even one that another thread makes just now.
      auto& byte = *reinterpret_cast<unsigned char*>(part.data() + offset);
      unsigned char zero = 0;
      std::atomic_ref<unsigned char>(byte).compare_exchange_strong(zero, 0);
    }
  }
}

void HostMapping::make_huge() const noexcept {
  if (pages_ == PageKind::kPool) return;
  const std::uint64_t whole = bytes_.size() / huge_page_bytes() * huge_page_bytes();
  static_cast<void>(::madvise(bytes_.data(), whole, MADV_COLLAPSE));
}

std::uint64_t HostMapping::missing_bytes(std::span<std::byte> part) const {
  std::vector<unsigned char> resident((part.size() + page_bytes() - 1) / page_bytes());
  if (::mincore(part.data(), part.size(), resident.data()) != 0) return part.size();
  const auto missing = std::count_if(resident.begin(), resident.end(),
                                     [](unsigned char page) { return (page & 1U) == 0; });
  return static_cast<std::uint64_t>(missing) * page_bytes();
}

void HostMapping::release(std::span<std::byte> part) const noexcept {
  // Kernels before 5.18 do not give back parts of the pool, which then stay until the end.
  static_cast<void>(::madvise(part.data(), part.size(), MADV_DONTNEED));
}

void HostMapping::stop_huge_pages() const noexcept {
  if (pages_ != PageKind::kTransparent) return;
  static_cast<void>(::madvise(mapped_.data(), mapped_.size(), MADV_NOHUGEPAGE));
}

}  // namespace kvferry::cpu_tier
