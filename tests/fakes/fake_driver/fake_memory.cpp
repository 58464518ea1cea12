// SPDX-License-Identifier: Apache-2.0
#include "fake_core.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <vector>

namespace kvferry::fakes {
namespace {

constexpr std::size_t kTotalBytes = std::size_t{4} << 30U;
constexpr std::size_t kPage = 4096;
constexpr std::align_val_t kAlignment{512};

bool within_one(const std::map<std::uintptr_t, std::size_t>& ranges, std::uintptr_t address,
                std::size_t bytes) {
  const auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) return false;
  const auto& [begin, size] = *std::prev(next);
  return address - begin <= size && bytes <= size - (address - begin);
}

}  // namespace

int FakeCore::allocate(std::uintptr_t* address, std::size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  memory_info(&free_bytes, &total_bytes);
  if (bytes > free_bytes) return kOutOfMemory;
  void* const allocated = ::operator new(bytes, kAlignment, std::nothrow);
  if (allocated == nullptr) return kOutOfMemory;
  *address = reinterpret_cast<std::uintptr_t>(allocated);
  MutexLock lock(mutex_);
  allocations_.emplace(*address, bytes);
  return kOk;
}

int FakeCore::free(std::uintptr_t address) {
  MutexLock lock(mutex_);
  if (allocations_.erase(address) != 1) return kInvalidValue;
  ::operator delete(reinterpret_cast<void*>(address), kAlignment);
  return kOk;
}

void FakeCore::free_all() {
  MutexLock lock(mutex_);
  for (const auto& [address, bytes] : allocations_) {
    ::operator delete(reinterpret_cast<void*>(address), kAlignment);
  }
  allocations_.clear();
}

void FakeCore::memory_info(std::size_t* free_bytes, std::size_t* total_bytes) const {
  MutexLock lock(mutex_);
  *total_bytes = kTotalBytes;
  *free_bytes = kTotalBytes;
  for (const auto& [address, bytes] : allocations_) *free_bytes -= bytes;
}

// Drivers pin pages: two registrations that share one are refused.
int FakeCore::register_host(std::uintptr_t address, std::size_t bytes) {
  if (address == 0 || bytes == 0) return kInvalidValue;
  const auto first_page = address / kPage;
  const auto last_page = (address + bytes - 1) / kPage;
  MutexLock lock(mutex_);
  for (const auto& [begin, size] : registrations_) {
    if (begin / kPage <= last_page && first_page <= (begin + size - 1) / kPage) {
      return kAlreadyRegistered;
    }
  }
  registrations_.emplace(address, bytes);
  return kOk;
}

int FakeCore::unregister_host(std::uintptr_t address) {
  MutexLock lock(mutex_);
  const auto found = registrations_.find(address);
  if (found == registrations_.end()) return kNotRegistered;
  if (injector_ != nullptr) injector_->forget(address, found->second);
  registrations_.erase(found);
  return kOk;
}

int FakeCore::device_address(std::uintptr_t host, std::uintptr_t* device) const {
  MutexLock lock(mutex_);
  if (!within_one(registrations_, host, 1)) return kInvalidValue;
  *device = host + alias_;
  return kOk;
}

bool FakeCore::registered(std::uintptr_t device, std::size_t bytes) const {
  MutexLock lock(mutex_);
  return within_one(registrations_, device - alias_, bytes);
}

bool FakeCore::touches_registration(std::uintptr_t address, std::size_t bytes) const {
  MutexLock lock(mutex_);
  return std::any_of(registrations_.begin(), registrations_.end(), [&](const auto& range) {
    const std::uintptr_t begin = range.first;
    for (const std::uintptr_t at : {address, address - alias_}) {
      if (at < begin + range.second && begin < at + bytes) return true;
    }
    return false;
  });
}

bool FakeCore::on_device(std::uintptr_t address, std::size_t bytes) const {
  {
    MutexLock lock(mutex_);
    if (within_one(allocations_, address, bytes) || within_one(adopted_, address, bytes))
      return true;
  }
  return registered(address, bytes);
}

void* FakeCore::memory(std::uintptr_t address) const {
  return reinterpret_cast<void*>(alias_ != 0 && address >= alias_ ? address - alias_ : address);
}

int FakeCore::fill(std::uintptr_t address, int value, std::size_t bytes, std::uintptr_t stream) {
  if (!on_device(address, bytes)) return kInvalidValue;
  void* const at = memory(address);
  return submit(stream, [=] { std::memset(at, value, bytes); });
}

void FakeCore::copy_registered(gpu::InjectionWay way, void* to, const void* from,
                               std::size_t bytes) const {
  const auto injecting = injector();
  if (injecting == nullptr) {
    std::memcpy(to, from, bytes);
    return;
  }
  const CopyRun run{.destination = reinterpret_cast<std::uintptr_t>(to),
                    .source = reinterpret_cast<std::uintptr_t>(from),
                    .bytes = bytes};
  injecting->copy(way, {&run, 1});
}

int FakeCore::copy_in(std::uintptr_t device, std::uintptr_t host, std::size_t bytes,
                      std::uintptr_t stream) {
  if (!on_device(device, bytes)) return kInvalidValue;
  void* const to = memory(device);
  const auto* const from = static_cast<const std::byte*>(memory(host));
  if (registered(host, bytes)) {
    return submit(stream,
                  [=, this] { copy_registered(gpu::InjectionWay::kFromTier, to, from, bytes); });
  }
  if (touches_registration(host, bytes)) return kInvalidValue;
  const std::vector<std::byte> taken(from, from + bytes);
  return submit(stream, [=] { std::memcpy(to, taken.data(), taken.size()); });
}

int FakeCore::copy_out(std::uintptr_t host, std::uintptr_t device, std::size_t bytes,
                       std::uintptr_t stream) {
  if (!on_device(device, bytes)) return kInvalidValue;
  const bool pinned = registered(host, bytes);
  if (!pinned && touches_registration(host, bytes)) return kInvalidValue;
  void* const to = memory(host);
  const void* const from = memory(device);
  if (pinned) {
    return submit(stream,
                  [=, this] { copy_registered(gpu::InjectionWay::kToTier, to, from, bytes); });
  }
  // To pageable memory a driver copies before the call returns.
  auto copied = std::make_shared<FakePoint>();
  const int code = submit(stream, [=] {
    std::memcpy(to, from, bytes);
    copied->reach();
  });
  if (code == kOk) copied->wait();
  return code;
}

}  // namespace kvferry::fakes
