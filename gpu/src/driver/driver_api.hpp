// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "driver/driver_result.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::gpu {

// The vendor's handles, each with its own type. 0 means none, except for streams: the default
// stream.
enum class StreamHandle : std::uintptr_t {};
enum class EventHandle : std::uintptr_t {};
enum class ModuleHandle : std::uintptr_t {};
enum class FunctionHandle : std::uintptr_t {};

/// The state of the calling thread before DriverApi::enter().
struct ThreadState {
  int device = 0;
  int capture_mode = 0;
  bool device_changed = false;
  bool capture_mode_changed = false;
};

/// The properties that do not change while the device lives.
struct DriverTraits {
  BackendKind kind = BackendKind::kHost;
  /// The name by which users know it.
  std::string device_name;
  /// In the notation of sysfs, in lower case.
  std::optional<std::string> pci_address;
  /// "sm_90", "gfx942".
  std::string architecture;
  /// "CUDA driver 13.0".
  std::string driver;
  /// 90 for sm_90; 0 on HIP.
  int compute_capability = 0;
  int num_multiprocessors = 0;
  /// Most descriptors of one batch call; 0: the driver has no batch call.
  std::size_t max_batch_runs = 0;
  /// DeviceTraits::batches_by_default.
  bool batches_by_default = true;
};

/// The priorities that streams of a device can have; a lower number is more urgent.
struct StreamPriorities {
  int least = 0;
  int greatest = 0;
};
/// The priority of a stream that requested none; the same number for both vendors.
inline constexpr int kNormalPriority = 0;

struct LaunchShape {
  std::array<std::uint32_t, 3> grid{1, 1, 1};
  std::array<std::uint32_t, 3> block{1, 1, 1};
  std::uint32_t shared_bytes = 0;
};

/// The dynamic shared memory that a launch may use without permission, for both vendors.
inline constexpr std::uint32_t kDefaultSharedBytes = 48U << 10U;

/// The driver calls of one vendor that the back end needs, on one device. It has no rules of ours:
/// each method is one vendor call (or the few that a vendor needs for it) and converts its result.
/// Thread-safe, as the drivers are. All methods but enter(), leave() and describe() are called
/// between these two.
class DriverApi {
 public:
  virtual ~DriverApi() = default;

  [[nodiscard]] virtual const DriverTraits& traits() const = 0;
  /// Name, number and text of a vendor code.
  [[nodiscard]] virtual std::string describe(int code) const = 0;

  /// Makes the device current on this thread, and allows calls during another thread's stream
  /// capture.
  virtual DriverValue<ThreadState> enter() = 0;
  /// Restores the state of the thread.
  virtual void leave(const ThreadState& before) = 0;

  /// Both numbers are the normal priority if the device has no other.
  virtual DriverValue<StreamPriorities> stream_priorities() = 0;
  /// The stream never waits for the legacy default stream, nor the other way round. A `priority`
  /// outside of stream_priorities() becomes the nearest one.
  virtual DriverValue<StreamHandle> create_stream(int priority) = 0;
  virtual DriverResult destroy_stream(StreamHandle stream) = 0;
  virtual DriverResult query_stream(StreamHandle stream) = 0;
  /// Whether submitted work is now captured instead of run.
  virtual DriverValue<bool> is_capturing(StreamHandle stream) = 0;
  /// Whether `stream` belongs to this device's primary context; true if the driver cannot tell.
  virtual DriverValue<bool> is_ours(StreamHandle stream) = 0;

  /// The event records times, and releases to the system: the host sees what a done event covers.
  virtual DriverValue<EventHandle> create_event() = 0;
  virtual DriverResult destroy_event(EventHandle event) = 0;
  virtual DriverResult record_event(EventHandle event, StreamHandle stream) = 0;
  virtual DriverResult query_event(EventHandle event) = 0;
  virtual DriverResult wait_event(StreamHandle stream, EventHandle event) = 0;
  virtual DriverValue<std::chrono::nanoseconds> elapsed(EventHandle from, EventHandle to) = 0;

  virtual DriverResult copy(CopyDirection direction, const CopyRun& run, StreamHandle stream) = 0;
  /// Takes at most traits().max_batch_runs. A failure does not tell which runs were submitted.
  virtual DriverResult copy_batch(CopyDirection direction, std::span<const CopyRun> runs,
                                  StreamHandle stream) = 0;
  virtual DriverResult fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes,
                            StreamHandle stream) = 0;

  virtual DriverResult register_host(std::uintptr_t address, std::uint64_t bytes) = 0;
  virtual DriverResult unregister_host(std::uintptr_t address) = 0;
  /// The address by which the device knows registered memory.
  virtual DriverValue<std::uintptr_t> host_device_address(std::uintptr_t address) = 0;
  virtual DriverValue<std::uintptr_t> allocate(std::uint64_t bytes) = 0;
  virtual DriverResult free(std::uintptr_t address) = 0;
  virtual DriverValue<MemoryInfo> memory_info() = 0;

  /// Compiles `source` to machine code for this device, with the vendor's compiler at run time.
  /// Empty if the vendor needs none. Throws DeviceError.
  [[nodiscard]] virtual std::vector<std::byte> compile(std::string_view source) = 0;
  virtual DriverValue<ModuleHandle> load_module(std::span<const std::byte> image) = 0;
  virtual DriverResult unload_module(ModuleHandle module) = 0;
  /// The kernel `name`. Its launches may use `shared_bytes` of dynamic shared memory.
  virtual DriverValue<FunctionHandle> function(ModuleHandle module, const char* name,
                                               std::uint32_t shared_bytes) = 0;
  /// `argument` points to the kernel's only argument, which is copied before the call returns.
  virtual DriverResult launch(FunctionHandle function, const LaunchShape& shape, void* argument,
                              StreamHandle stream) = 0;
};

}  // namespace kvferry::gpu
