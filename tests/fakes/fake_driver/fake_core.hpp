// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"

#include "fake_control.hpp"
#include "injector.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace kvferry::fakes {

// Codes that both vendors share.
inline constexpr int kOk = 0;
inline constexpr int kInvalidValue = 1;
inline constexpr int kOutOfMemory = 2;
inline constexpr int kDeinitialized = 4;
inline constexpr int kInvalidDevice = 101;
inline constexpr int kInvalidContext = 201;
inline constexpr int kInvalidHandle = 400;
inline constexpr int kNotFound = 500;
inline constexpr int kNotReady = 600;
inline constexpr int kIllegalAddress = 700;
inline constexpr int kAlreadyRegistered = 712;
inline constexpr int kNotRegistered = 713;
/// No vendor's: the call does nothing and says that it went well.
inline constexpr int kSkipped = -1;

/// Of a batch's attribute entries: callers disagree whether there is one per attribute or per run
/// (vllm#53860).
inline bool all_zero(const std::size_t* entries, std::size_t count) {
  return std::all_of(entries, entries + count, [](std::size_t entry) { return entry == 0; });
}

/// A point of a stream, reached once.
class FakePoint {
 public:
  void reach();
  [[nodiscard]] bool reached() const;
  void wait() const;
  [[nodiscard]] std::chrono::steady_clock::time_point when() const;

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool reached_ KVFERRY_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point when_ KVFERRY_GUARDED_BY(mutex_);
};

/// Runs what is submitted, in order, on a thread of its own. Its destructor waits.
class FakeStream {
 public:
  FakeStream(int device, int priority);
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;
  ~FakeStream();
  void submit(std::function<void()> work);
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] int priority() const { return priority_; }
  [[nodiscard]] bool idle() const;
  /// Waits until what was submitted before this call has ended or was dropped.
  void drain() const;
  /// Drops what has not begun.
  void drop();
  /// Whether what has not begun waits. The destructor releases it.
  void hold(bool held);

 private:
  void serve();
  [[nodiscard]] std::function<void()> take();

  const int device_;
  const int priority_;
  mutable Mutex mutex_;
  CondVar submitted_;
  mutable CondVar ended_;
  std::uint64_t num_submitted_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::deque<std::function<void()>> queue_ KVFERRY_GUARDED_BY(mutex_);
  bool busy_ KVFERRY_GUARDED_BY(mutex_) = false;
  bool held_ KVFERRY_GUARDED_BY(mutex_) = false;
  bool closing_ KVFERRY_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// One vendor's driver with one device. Every entry point first asks enter(). Handles are numbers
/// that are never used twice.
class FakeCore final : public FakeControl {
 public:
  /// `alias` is added to a host address to make the device's address of registered memory.
  FakeCore(int version, std::uintptr_t alias);

  void reset() override;
  void set_version(int version) override;
  void hide(const std::string& function) override;
  void set_architecture(const std::string& architecture) override;
  void fail_nth(const std::string& function, std::uint64_t nth, int code) override;
  void lose(int code) override;
  void go_down_at_exit() override;
  void slow_down(std::chrono::nanoseconds delay) override { delay_ = delay; }
  void hold(bool held) override;
  void adopt(std::uintptr_t address, std::size_t bytes) override;
  void disown(std::uintptr_t address, std::size_t bytes) override;
  void settle() override;
  void inject(const gpu::InjectionOptions& options, std::uint64_t seed) override;
  [[nodiscard]] std::vector<gpu::InjectionEvent> take_injections() override;
  void set_capturing(std::uintptr_t stream) override;
  [[nodiscard]] std::uint64_t num_calls(const std::string& function) const override;
  [[nodiscard]] std::uint64_t last_batch_runs() const override { return last_batch_runs_; }
  [[nodiscard]] int last_source_order() const override { return last_source_order_; }
  [[nodiscard]] std::uint64_t num_alive() const override;
  [[nodiscard]] std::vector<int> stream_priorities() const override;
  [[nodiscard]] int thread_context() const override;
  [[nodiscard]] int thread_capture_mode() const override;

  /// Counts the call; kOk if it may go on.
  [[nodiscard]] int enter(const char* function);
  [[nodiscard]] int version() const;
  [[nodiscard]] std::string architecture() const;
  [[nodiscard]] bool hidden(const std::string& function) const;
  [[nodiscard]] bool capturing(std::uintptr_t stream) const;
  void note_batch(std::uint64_t num_runs, int source_order);
  /// Of the calling thread.
  static int& context();
  static int& capture_mode();

  [[nodiscard]] std::uintptr_t create_stream(int device, int priority);
  /// The device that the stream was made on; `otherwise` for the default stream and unknown ones.
  [[nodiscard]] int stream_device(std::uintptr_t stream, int otherwise);
  /// Waits for all work that was submitted before, as drivers do when a kernel is loaded, memory is
  /// freed or host memory unregistered.
  void drain();
  [[nodiscard]] int destroy_stream(std::uintptr_t stream);
  [[nodiscard]] int query_stream(std::uintptr_t stream);
  [[nodiscard]] int submit(std::uintptr_t stream, std::function<void()> work);
  [[nodiscard]] static bool is_legacy(std::uintptr_t stream) { return stream <= 1; }

  [[nodiscard]] std::uintptr_t create_event();
  [[nodiscard]] int destroy_event(std::uintptr_t event);
  [[nodiscard]] int record_event(std::uintptr_t event, std::uintptr_t stream);
  [[nodiscard]] int query_event(std::uintptr_t event);
  [[nodiscard]] int wait_event(std::uintptr_t stream, std::uintptr_t event);
  [[nodiscard]] int elapsed(float* milliseconds, std::uintptr_t from, std::uintptr_t to);

  [[nodiscard]] int allocate(std::uintptr_t* address, std::size_t bytes);
  [[nodiscard]] int free(std::uintptr_t address);
  void memory_info(std::size_t* free_bytes, std::size_t* total_bytes) const;
  [[nodiscard]] int register_host(std::uintptr_t address, std::size_t bytes);
  [[nodiscard]] int unregister_host(std::uintptr_t address);
  [[nodiscard]] int device_address(std::uintptr_t host, std::uintptr_t* device) const;
  /// Whether the range lies in one allocation or adopted range, or in one registration by its
  /// device address.
  [[nodiscard]] bool on_device(std::uintptr_t address, std::size_t bytes) const;
  [[nodiscard]] bool registered(std::uintptr_t device, std::size_t bytes) const;
  /// Whether the range overlaps a registration, by its host or its device address.
  [[nodiscard]] bool touches_registration(std::uintptr_t address, std::size_t bytes) const;

  [[nodiscard]] int fill(std::uintptr_t address, int value, std::size_t bytes,
                         std::uintptr_t stream);
  /// From memory that is not registered the bytes are taken during the call, and to it they are
  /// there when the call returns; memory that is registered in part is refused.
  [[nodiscard]] int copy_in(std::uintptr_t device, std::uintptr_t host, std::size_t bytes,
                            std::uintptr_t stream);
  [[nodiscard]] int copy_out(std::uintptr_t host, std::uintptr_t device, std::size_t bytes,
                             std::uintptr_t stream);
  [[nodiscard]] std::uintptr_t load_module();
  [[nodiscard]] int unload_module(std::uintptr_t module);
  /// A handle for a known kernel; 0 if there is none of the name.
  [[nodiscard]] std::uintptr_t function(std::uintptr_t module, const std::string& name);
  [[nodiscard]] int launch(std::uintptr_t function, unsigned num_ctas, unsigned num_threads,
                           const void* argument, std::uintptr_t stream);

 private:
  void go_down();
  /// What the environment asks for (fake_control.hpp, kFakeFaultsVariable).
  void read_faults() KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] std::uintptr_t next_handle() KVFERRY_REQUIRES(mutex_) { return next_ += 16; }
  void free_all();
  [[nodiscard]] std::shared_ptr<FakeStream> stream(std::uintptr_t handle);
  /// Null: nothing is injected.
  [[nodiscard]] std::shared_ptr<gpu::Injector> injector() const;
  /// A copy between the device and registered memory.
  void copy_registered(gpu::InjectionWay way, void* to, const void* from, std::size_t bytes) const;
  void run_launch(const std::string& name, unsigned num_ctas, unsigned num_threads,
                  std::vector<std::byte> parameter) const;
  [[nodiscard]] void* memory(std::uintptr_t address) const;

  const int first_version_;
  const std::uintptr_t alias_;
  mutable Mutex mutex_;
  int version_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::string architecture_ KVFERRY_GUARDED_BY(mutex_);
  int lost_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uintptr_t capturing_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::set<std::string> hidden_ KVFERRY_GUARDED_BY(mutex_);
  struct Failure {
    std::uint64_t calls_left;
    FakeFault fault;
  };
  std::map<std::string, Failure> failures_ KVFERRY_GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t> calls_ KVFERRY_GUARDED_BY(mutex_);
  std::shared_ptr<gpu::Injector> injector_ KVFERRY_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> last_batch_runs_{0};
  std::atomic<int> last_source_order_{0};
  std::atomic<std::chrono::nanoseconds> delay_{std::chrono::nanoseconds(0)};
  std::uintptr_t next_ KVFERRY_GUARDED_BY(mutex_) = 0x1000;
  std::map<std::uintptr_t, std::shared_ptr<FakeStream>> streams_ KVFERRY_GUARDED_BY(mutex_);
  /// Their work may still run.
  std::list<std::shared_ptr<FakeStream>> destroyed_ KVFERRY_GUARDED_BY(mutex_);
  std::shared_ptr<FakeStream> legacy_ KVFERRY_GUARDED_BY(mutex_);
  /// Null: never recorded.
  std::map<std::uintptr_t, std::shared_ptr<FakePoint>> events_ KVFERRY_GUARDED_BY(mutex_);
  std::map<std::uintptr_t, std::size_t> allocations_ KVFERRY_GUARDED_BY(mutex_);
  std::map<std::uintptr_t, std::size_t> adopted_ KVFERRY_GUARDED_BY(mutex_);
  /// By host address.
  std::map<std::uintptr_t, std::size_t> registrations_ KVFERRY_GUARDED_BY(mutex_);
  std::set<std::uintptr_t> modules_ KVFERRY_GUARDED_BY(mutex_);
  std::map<std::uintptr_t, std::string> functions_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::fakes
