// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/batch_copy.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/ids.hpp"
#include "kvferry/gpu/backend_table.hpp"
#include "kvferry/gpu/block_geometry.hpp"
#include "kvferry/gpu/device_loss.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

/// The device interface. All code above gpu/ uses only this interface. It has three
/// implementations: host, cuda and hip.
///
/// Terms. A *stream* runs operations in the order of their submission. Operations of two streams
/// have no order unless an event orders them. An *event* marks a point of a stream. Device and host
/// memory are given by address; on the host back end both are ordinary memory.
///
/// A process can *lose* a device (Device::lost()): after some errors, from any cause, the driver
/// refuses every call. A loss is permanent. From then on, submissions and all functions that create
/// something throw DeviceError, which says when and why the device was lost. Recording an event
/// succeeds, and the event is failed. Pending events are failed; events that were seen as done stay
/// done. So a failed event of a lost device does not tell whether its point was reached; LostMemory
/// tells what can still happen. While memory is in doubt, nothing that the device could touch is
/// released: destroyed buffers are not freed, destroyed registrations are not unregistered, and the
/// owner has to keep the memory of a registration.
namespace kvferry::gpu {

enum class CopyDirection : std::uint8_t { kDeviceToHost, kHostToDevice };
[[nodiscard]] const char* to_string(CopyDirection direction);

using kvferry::CopyRun;

/// Most descriptors that a batch call takes on any back end (drivers crash on more: vllm#49276, and
/// HIP above 8,192).
inline constexpr std::size_t kMaxBatchRuns = 4096;

/// Which driver calls Stream::copy() uses for its runs.
enum class CopyCall : std::uint8_t {
  /// The batch call for more than one run, if DeviceTraits::batches_by_default is set and the
  /// stream supports it; otherwise one call per run.
  kDeviceDefault,
  /// One asynchronous call per run.
  kPerRun,
  /// The batch call, even for a single run. A stream that does not support it
  /// (DeviceTraits::max_batch_runs is 0, or the legacy default stream) makes one call per run.
  kBatch
};
[[nodiscard]] const char* to_string(CopyCall call);

/// The priority of a stream's kernels. When a multiprocessor becomes free, the driver gives it to
/// the waiting kernel with the highest priority; running kernels are not interrupted. Copies have
/// no priority (cuStreamCreateWithPriority).
enum class StreamPriority : std::uint8_t {
  kNormal,  ///< The default priority.
  kHigh     ///< The highest that the device has, which can be the normal one.
};

/// Groups of devices whose links and drivers behave alike. kCudaOlder: below sm_90.
enum class DeviceFamily : std::uint8_t { kHost, kCudaOlder, kCuda90, kHip };
[[nodiscard]] const char* to_string(DeviceFamily family);

/// The properties of a device by which the copy path is chosen. They do not change while the device
/// lives.
struct DeviceTraits {
  DeviceFamily family = DeviceFamily::kHost;
  /// Most runs of one batch call, at most kMaxBatchRuns; 0: the driver has no batch call.
  std::size_t max_batch_runs = 0;
  /// Whether gather(), scatter() and sum() are available.
  bool has_pack_kernels = false;
  /// Whether the batch call is used by default, without CopyCall::kBatch. False on HIP: its batch
  /// call corrupts device memory while graphs are replayed (rocm-systems#11662).
  bool batches_by_default = true;
  /// 0 on the host back end.
  std::uint32_t num_multiprocessors = 0;
  /// Whether a scatter from host memory that sums is as fast as a copy that does not. Then a load
  /// that is checked is best a scatter. True on the host back end without a simulated link.
  bool sums_at_copy_speed = false;
};

/// unrecorded -> pending -> done | failed. `kFailed`: an operation of the stream between the
/// previous record on that stream and this one failed, or the stream had failed for good before. A
/// failed event stays failed until it is recorded again.
enum class EventState : std::uint8_t { kUnrecorded, kPending, kDone, kFailed };

/// A point in a stream. Queries are thread-safe; one thread at a time records it. Destroying a
/// pending event is legal and does not wait.
class Event {
 public:
  virtual ~Event() = default;
  [[nodiscard]] virtual EventState query() const = 0;
  /// Waits until the event is done or failed, at most `bound`, and returns its state. Returns at
  /// once if the event is unrecorded.
  [[nodiscard]] virtual EventState wait(std::chrono::nanoseconds bound) const = 0;
  /// Why it failed; empty unless kFailed.
  [[nodiscard]] virtual std::string failure() const = 0;
  /// Device time between `from` and this event; both are done and of the same device. Throws
  /// DeviceError if either is not done, or if the device cannot measure it.
  [[nodiscard]] virtual std::chrono::nanoseconds elapsed_since(const Event& from) const = 0;
};

/// An ordered queue of device work. One thread at a time submits work. A submission either throws
/// DeviceError, and then no part of it runs, or is in the queue. The destructor waits for the
/// stream's work, except on a lost device of a driver.
class Stream {
 public:
  virtual ~Stream() = default;

  /// Marks this point of the stream in `event` (made by the same device). A pending event can be
  /// recorded again: it then marks the new point, while waits that were submitted earlier still
  /// wait for the old one.
  virtual void record(Event& event) = 0;
  /// Later work of this stream starts only after `event` is done or failed. An unrecorded event is
  /// a broken invariant.
  virtual void wait(const Event& event) = 0;

  /// Copies `runs` (at most kMaxBatchRuns, in any order; empty: no work) with the driver calls that
  /// `call` selects; the result is the same for all of them. The host side of each run lies within
  /// one registration. The span `runs` is copied before the function returns. Source memory on the
  /// host is read in stream order or earlier; it must not change until the copy's event is done.
  virtual void copy(CopyDirection direction, std::span<const CopyRun> runs,
                    CopyCall call = CopyCall::kDeviceDefault) = 0;
  /// Packs blocks: `blocks[i]` goes to `packed + i * geometry.packed_bytes`. `packed` is device
  /// memory, or the device address of host memory within one registration. `geometry` and `blocks`
  /// are copied before the function returns. A block outside the geometry is a DeviceError.
  ///
  /// Unless `sums` is 0, it also adds the tag_sum() (tag_sum.hpp) of packed block i to the i-th
  /// std::uint64_t at `sums`. `sums` is device memory, aligned to 8 bytes; the caller has set it to
  /// 0 with fill(). Another address is a DeviceError.
  virtual void gather(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                      std::uintptr_t packed, std::uintptr_t sums) = 0;
  /// The reverse of gather(). The sums are those of the packed bytes that it reads.
  virtual void scatter(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                       std::uintptr_t packed, std::uintptr_t sums) = 0;
  /// Adds to `sums` what gather() would add for the same blocks, and moves nothing. 0 is a
  /// DeviceError here.
  virtual void sum(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                   std::uintptr_t sums) = 0;
  /// gather() and scatter() without sums.
  void gather(const BlockGeometry& geometry, std::span<const BlockId> blocks,
              std::uintptr_t packed) {
    gather(geometry, blocks, packed, 0);
  }
  void scatter(const BlockGeometry& geometry, std::span<const BlockId> blocks,
               std::uintptr_t packed) {
    scatter(geometry, blocks, packed, 0);
  }
  /// Sets `bytes` bytes of device memory to `value`.
  virtual void fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes) = 0;

  /// Waits until all submitted work has ended, at most `bound`. Returns false on time-out, and at
  /// once if the device is lost with memory in doubt. Failures of the work do not throw here; the
  /// events report them.
  [[nodiscard]] virtual bool synchronize(std::chrono::nanoseconds bound) = 0;
};

/// Device memory. Its destructor frees it without waiting, so the owner quiesces first. It is never
/// freed after the device is lost.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  [[nodiscard]] virtual std::uintptr_t address() const = 0;
  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
};

/// Host memory that is registered with the device (pinned). The destructor unregisters it, unless
/// the device is lost: then the owner of the memory has to keep it while it is in doubt.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
  /// The address with which the device reads and writes it; it can differ from the host's address
  /// (HIP).
  [[nodiscard]] virtual std::uintptr_t device_address() const = 0;
};

struct MemoryInfo {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// One device. Thread-safe. It outlives everything that it made, except objects that are kept on
/// purpose because the device was lost with memory in doubt.
class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual BackendKind kind() const = 0;
  /// Name, architecture and driver, for logs.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Its PCI address as in sysfs, in lower case: "0000:c1:00.0". Nothing for the host, or if the
  /// driver does not report it.
  [[nodiscard]] virtual std::optional<std::string> pci_address() const { return std::nullopt; }
  [[nodiscard]] virtual DeviceTraits traits() const = 0;
  [[nodiscard]] virtual MemoryInfo memory_info() const = 0;
  /// Nothing while the device works. A loss is permanent: `why` and `since` stay those of the first
  /// detection, and memory in doubt can only become quiet (when the driver shuts down). Calls that
  /// reach the device detect a loss, including queries of pending events; this function does not
  /// call the driver.
  [[nodiscard]] virtual std::optional<DeviceLoss> lost() const = 0;

  /// Makes a new stream. The host back end has only one priority. Throws DeviceError.
  [[nodiscard]] virtual std::unique_ptr<Stream> create_stream(
      StreamPriority priority = StreamPriority::kNormal) = 0;
  /// A view of one of the engine's streams (a cudaStream_t or hipStream_t as an integer). On the
  /// host back end the engine computes on the calling thread, so the view runs each operation
  /// before the call returns, and ignores the handle. Throws DeviceError.
  [[nodiscard]] virtual std::unique_ptr<Stream> view_stream(std::uintptr_t native_handle) = 0;
  /// Throws DeviceError.
  [[nodiscard]] virtual std::unique_ptr<Event> create_event() = 0;
  /// Prepares gather() and scatter() for `geometry`: uploads its table and loads the kernels. Waits
  /// until that is done, so no later call has to wait; without prepare() the first use takes that
  /// time. Throws DeviceError, with one line if the build has no kernels for the device.
  virtual void prepare(const BlockGeometry& geometry) = 0;
  /// Frees the device memory that prepare(), or the first use, allocated for `geometry`. No work
  /// that uses it may be under way. The geometry can be prepared again. Kernels and other shared
  /// data stay loaded. Never throws.
  virtual void forget(const BlockGeometry& geometry) = 0;
  /// Throws ResourceError with the requested and the free bytes.
  [[nodiscard]] virtual std::unique_ptr<DeviceBuffer> allocate(std::uint64_t bytes) = 0;
  /// Registers [address, address + bytes), which must not overlap a live registration. Throws
  /// DeviceError; then nothing is registered.
  [[nodiscard]] virtual std::unique_ptr<HostRegistration> register_host(void* address,
                                                                        std::uint64_t bytes) = 0;
};

}  // namespace kvferry::gpu
