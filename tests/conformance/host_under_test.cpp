// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "device_factory.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvferry::gpu {
namespace {

// Fills of these sizes, used by no test, are the operations that hold and fail.
constexpr std::uint64_t kHoldingBytes = 4093;
constexpr std::uint64_t kFailingBytes = 4091;

class HostUnderTest final : public DeviceUnderTest {
 public:
  HostUnderTest()
      : device_(make_host_device({}, [this](const OperationInfo& info) { return judge(info); })),
        scratch_(device_->allocate(kHoldingBytes)) {}

  Device& device() override { return *device_; }
  std::uintptr_t engine_stream() override { return 0; }

  void hold(Stream& stream, std::chrono::milliseconds limit) override {
    std::uint64_t num_before = 0;
    {
      MutexLock lock(mutex_);
      num_before = num_held_;
      limit_ = limit;
    }
    stream.fill(scratch_->address(), 0, kHoldingBytes);
    MutexLock lock(mutex_);
    while (num_held_ == num_before) changed_.wait_for(mutex_, kWaitSlice);
  }

  std::uint64_t release() override {
    MutexLock lock(mutex_);
    ++num_releases_;
    changed_.notify_all();
    return std::exchange(num_expired_, 0);
  }

  void submit_failing(Stream& stream) override {
    stream.fill(scratch_->address(), 0, kFailingBytes);
  }

 private:
  static constexpr std::chrono::seconds kWaitSlice{1};

  OperationVerdict judge(const OperationInfo& info) {
    if (info.kind != OperationInfo::Kind::kFill) return {};
    if (info.bytes == kFailingBytes) return {.delay = {}, .fail = true};
    if (info.bytes != kHoldingBytes) return {};
    MutexLock lock(mutex_);
    const std::uint64_t num_before = num_releases_;
    ++num_held_;
    changed_.notify_all();
    const auto end = std::chrono::steady_clock::now() + limit_;
    while (num_releases_ == num_before && std::chrono::steady_clock::now() < end) {
      changed_.wait_for(mutex_, std::min<std::chrono::nanoseconds>(kWaitSlice, limit_));
    }
    if (num_releases_ == num_before) ++num_expired_;
    return {};
  }

  Mutex mutex_;
  CondVar changed_;
  std::uint64_t num_held_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_releases_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_expired_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::chrono::milliseconds limit_ KVFERRY_GUARDED_BY(mutex_){0};
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceBuffer> scratch_;
};

}  // namespace

std::unique_ptr<DeviceUnderTest> open_host_device() { return std::make_unique<HostUnderTest>(); }

}  // namespace kvferry::gpu
