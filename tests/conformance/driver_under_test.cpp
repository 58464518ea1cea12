// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/cuda_device.hpp"
#include "kvferry/gpu/hip_device.hpp"

#include "device_factory.hpp"
#include "driver/driver_device.hpp"
#include "driver/driver_scope.hpp"
#include "driver/driver_stream.hpp"
#include "driver/shared_library.hpp"
#include "fake_control.hpp"
#include "fake_library.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace kvferry::gpu {
namespace {

constexpr std::chrono::seconds kWaitSlice{1};

/// Held operations are host functions of the vendor's streams.
class DriverUnderTest final : public DeviceUnderTest {
 public:
  /// `library` begins the file name of the library that the device has opened, RTLD_LOCAL: it is
  /// found by its path only.
  DriverUnderTest(std::unique_ptr<Device> device, const char* library, const char* launch_name)
      : device_(std::move(device)), engine_(device_->create_stream()) {
    const std::string path = SharedLibrary::find_loaded(library);
    if (!path.empty()) {
      launch_ = reinterpret_cast<LaunchHostFunction>(
          SharedLibrary::open(path, "it was open").symbol(launch_name));
    }
    if (launch_ == nullptr) throw std::runtime_error("the driver has no host functions");
  }
  ~DriverUnderTest() override { std::ignore = release(); }
  DriverUnderTest(const DriverUnderTest&) = delete;
  DriverUnderTest& operator=(const DriverUnderTest&) = delete;

  Device& device() override { return *device_; }
  std::uintptr_t engine_stream() override { return native(*engine_); }

  void hold(Stream& stream, std::chrono::milliseconds limit) override {
    auto held = std::make_unique<Held>();
    held->limit = limit;
    Held& mine = *held;
    {
      MutexLock lock(mutex_);
      held_.push_back(std::move(held));
    }
    launch(stream, mine);
    // So that the stream knows of work behind its last record.
    dynamic_cast<DriverStream&>(stream).note_foreign_work();
    MutexLock lock(mine.mutex);
    while (!mine.running) mine.changed.wait_for(mine.mutex, kWaitSlice);
  }

  std::uint64_t release() override {
    std::uint64_t num_expired = 0;
    MutexLock lock(mutex_);
    for (const auto& held : held_) {
      MutexLock held_lock(held->mutex);
      if (held->expired && !held->released) ++num_expired;
      held->released = true;
      held->changed.notify_all();
    }
    return num_expired;
  }

  void submit_failing(Stream& stream) override {
    dynamic_cast<DriverStream&>(stream).fail("failed by request of the test");
  }

 private:
  using LaunchHostFunction = int (*)(void* stream, void (*function)(void*), void* data);

  struct Held {
    Mutex mutex;
    CondVar changed;
    bool running KVFERRY_GUARDED_BY(mutex) = false;
    bool released KVFERRY_GUARDED_BY(mutex) = false;
    bool expired KVFERRY_GUARDED_BY(mutex) = false;
    std::chrono::milliseconds limit{0};
  };

  static void run(void* data) {
    Held& mine = *static_cast<Held*>(data);
    MutexLock lock(mine.mutex);
    mine.running = true;
    mine.changed.notify_all();
    const auto end = std::chrono::steady_clock::now() + mine.limit;
    while (!mine.released && std::chrono::steady_clock::now() < end) {
      mine.changed.wait_for(mine.mutex, std::min<std::chrono::nanoseconds>(kWaitSlice, mine.limit));
    }
    mine.expired = !mine.released;
  }
  /// The drivers demand a current device of it as of any launch.
  void launch(Stream& stream, Held& held) {
    const DriverScope scope(dynamic_cast<DriverDevice&>(*device_).context());
    const int code = launch_(reinterpret_cast<void*>(native(stream)), &run, &held);
    if (code != 0) {
      throw std::runtime_error("the driver refused a host function: " + std::to_string(code));
    }
  }
  static std::uintptr_t native(Stream& stream) {
    return static_cast<std::uintptr_t>(dynamic_cast<DriverStream&>(stream).native_handle());
  }

  LaunchHostFunction launch_ = nullptr;
  Mutex mutex_;
  /// All that were ever held: a released one may still be about to leave run().
  std::vector<std::unique_ptr<Held>> held_ KVFERRY_GUARDED_BY(mutex_);
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> engine_;
};

std::unique_ptr<DeviceUnderTest> open_cuda_device() {
  return std::make_unique<DriverUnderTest>(make_cuda_device(0), "libcuda.so", "cuLaunchHostFunc");
}

std::unique_ptr<DeviceUnderTest> open_hip_device() {
  return std::make_unique<DriverUnderTest>(make_hip_device(0), "libamdhip64.so",
                                           "hipLaunchHostFunc");
}

std::unique_ptr<DeviceUnderTest> open_cuda_stand_in() {
  return std::make_unique<DriverUnderTest>(
      make_cuda_device(0,
                       {.library = fakes::fake_cuda_library(), .kernel_image = fakes::kFakeImage}),
      "libfake_cuda.so", "cuLaunchHostFunc");
}

std::unique_ptr<DeviceUnderTest> open_hip_stand_in() {
  return std::make_unique<DriverUnderTest>(
      make_hip_device(0, {.library = fakes::fake_hip_library(), .kernel_image = fakes::kFakeImage}),
      "libfake_hip.so", "hipLaunchHostFunc");
}

}  // namespace

std::vector<Backend> driver_backends() {
  const BackendAvailability cuda = cuda_availability();
  const BackendAvailability hip = hip_availability();
  return {
      {"cuda", BackendKind::kCuda, cuda.available() ? &open_cuda_device : nullptr, cuda.why_not},
      {"hip", BackendKind::kHip, hip.available() ? &open_hip_device : nullptr, hip.why_not},
      {"cuda_stand_in", BackendKind::kCuda, &open_cuda_stand_in, ""},
      {"hip_stand_in", BackendKind::kHip, &open_hip_stand_in, ""},
  };
}

}  // namespace kvferry::gpu
