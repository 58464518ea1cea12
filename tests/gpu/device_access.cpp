// SPDX-License-Identifier: Apache-2.0
#include "device_access.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace kvferry::gpu {
namespace {

constexpr std::chrono::minutes kHang{2};
constexpr std::size_t kPinnedBytes = std::size_t{256} << 10U;

}  // namespace

DeviceAccess::DeviceAccess(Device& device, std::unique_ptr<Stream> stream)
    : stream_(std::move(stream)) {
  if (device.kind() != BackendKind::kHost) {
    pinned_ = std::make_unique<PinnedMemory>(device, kPinnedBytes);
  }
}

DeviceAccess::~DeviceAccess() { static_cast<void>(stream_->synchronize(kHang)); }

void DeviceAccess::write(std::uintptr_t address, std::span<const std::uint8_t> bytes) {
  if (is_host()) {
    std::memcpy(reinterpret_cast<void*>(address), bytes.data(), bytes.size());
    return;
  }
  while (!bytes.empty()) {
    if (pinned_used_ == kPinnedBytes) wait();
    const auto some = bytes.first(std::min(bytes.size(), kPinnedBytes - pinned_used_));
    std::memcpy(pinned_->bytes().data() + pinned_used_, some.data(), some.size());
    const CopyRun run = {address, pinned_->device_address() + pinned_used_, some.size()};
    stream_->copy(CopyDirection::kHostToDevice, {&run, 1});
    pinned_used_ += some.size();
    address += some.size();
    bytes = bytes.subspan(some.size());
  }
}

void DeviceAccess::fill(std::uintptr_t address, std::uint8_t value, std::size_t bytes) {
  if (is_host()) {
    std::memset(reinterpret_cast<void*>(address), value, bytes);
    return;
  }
  stream_->fill(address, value, bytes);
}

void DeviceAccess::read(std::uintptr_t address, std::span<std::uint8_t> bytes) {
  if (is_host()) {
    std::memcpy(bytes.data(), reinterpret_cast<const void*>(address), bytes.size());
    return;
  }
  while (!bytes.empty()) {
    wait();
    const auto some = bytes.first(std::min(bytes.size(), kPinnedBytes));
    const CopyRun run = {pinned_->device_address(), address, some.size()};
    stream_->copy(CopyDirection::kDeviceToHost, {&run, 1});
    wait();
    std::memcpy(some.data(), pinned_->bytes().data(), some.size());
    address += some.size();
    bytes = bytes.subspan(some.size());
  }
}

void DeviceAccess::wait() {
  if (!stream_->synchronize(kHang)) throw TimeoutError("a stream does not end");
  pinned_used_ = 0;
}

}  // namespace kvferry::gpu
