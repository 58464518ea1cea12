// SPDX-License-Identifier: Apache-2.0
// Replaces the C++ heap of this test program, in all of its forms: a sanitizer's own forms do not
// call each other.
#include "allocation_fault.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <malloc.h>
#include <new>

namespace kvferry::fault {
namespace {

thread_local std::uint64_t fail_in = 0;
thread_local bool has_fired = false;
std::atomic<std::int64_t> num_live_now{0};
std::atomic<std::int64_t> live_bytes{0};

void* allocate_or_null(std::size_t bytes, std::size_t alignment) noexcept {
  if (fail_in != 0 && --fail_in == 0) {
    has_fired = true;
    return nullptr;
  }
  if (bytes == 0) bytes = 1;
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  void* memory = alignment <= alignof(std::max_align_t) ? std::malloc(bytes)
                                                        : std::aligned_alloc(alignment, whole);
  if (memory != nullptr) {
    ++num_live_now;
    live_bytes += static_cast<std::int64_t>(::malloc_usable_size(memory));
  }
  return memory;
}

void* allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  void* memory = allocate_or_null(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  --num_live_now;
  live_bytes -= static_cast<std::int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

constexpr std::size_t kDefault = alignof(std::max_align_t);

}  // namespace

AllocationFault::AllocationFault(std::uint64_t nth) {
  fail_in = nth;
  has_fired = false;
}
AllocationFault::~AllocationFault() { fail_in = 0; }
bool AllocationFault::fired() const { return has_fired; }

std::int64_t num_live_allocations() { return num_live_now; }
std::int64_t num_live_bytes() { return live_bytes; }

}  // namespace kvferry::fault

namespace fault = kvferry::fault;
using Align = std::align_val_t;
using Quiet = std::nothrow_t;
using Size = std::size_t;

void* operator new(Size n) { return fault::allocate(n); }
void* operator new[](Size n) { return fault::allocate(n); }
void* operator new(Size n, Align a) { return fault::allocate(n, static_cast<Size>(a)); }
void* operator new[](Size n, Align a) { return fault::allocate(n, static_cast<Size>(a)); }
void* operator new(Size n, const Quiet&) noexcept {
  return fault::allocate_or_null(n, fault::kDefault);
}
void* operator new[](Size n, const Quiet&) noexcept {
  return fault::allocate_or_null(n, fault::kDefault);
}
void* operator new(Size n, Align a, const Quiet&) noexcept {
  return fault::allocate_or_null(n, static_cast<Size>(a));
}
void* operator new[](Size n, Align a, const Quiet&) noexcept {
  return fault::allocate_or_null(n, static_cast<Size>(a));
}
void operator delete(void* p) noexcept { fault::release(p); }
void operator delete[](void* p) noexcept { fault::release(p); }
void operator delete(void* p, Size) noexcept { fault::release(p); }
void operator delete[](void* p, Size) noexcept { fault::release(p); }
void operator delete(void* p, Align) noexcept { fault::release(p); }
void operator delete[](void* p, Align) noexcept { fault::release(p); }
void operator delete(void* p, Size, Align) noexcept { fault::release(p); }
void operator delete[](void* p, Size, Align) noexcept { fault::release(p); }
void operator delete(void* p, const Quiet&) noexcept { fault::release(p); }
void operator delete[](void* p, const Quiet&) noexcept { fault::release(p); }
void operator delete(void* p, Align, const Quiet&) noexcept { fault::release(p); }
void operator delete[](void* p, Align, const Quiet&) noexcept { fault::release(p); }
