// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <new>
#include <sys/mman.h>

namespace kvferry::cpu_tier {

/// An allocator for std::vector, for large tables that are read at random. It asks for transparent
/// huge pages, because without them most accesses also miss the TLB. If the kernel refuses, only
/// speed is lost.
template <class T>
struct HugePageAllocator {
  using value_type = T;

  static constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

  HugePageAllocator() = default;
  template <class U>
  explicit HugePageAllocator(const HugePageAllocator<U>&) {}

  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_alloc();
    void* memory = ::operator new(count * sizeof(T), alignment(count));
    if (count * sizeof(T) >= kHugePageBytes) {
      static_cast<void>(::madvise(memory, count * sizeof(T), MADV_HUGEPAGE));
    }
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    ::operator delete(memory, alignment(count));
  }

  bool operator==(const HugePageAllocator&) const = default;

 private:
  static std::align_val_t alignment(std::size_t count) {
    return std::align_val_t{count * sizeof(T) >= kHugePageBytes ? kHugePageBytes : alignof(T)};
  }
};

}  // namespace kvferry::cpu_tier
