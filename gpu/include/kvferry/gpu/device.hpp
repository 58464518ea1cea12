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

/// The device interface: everything above gpu/ is written once against it. Three implementations:
/// host (here), cuda, hip.
///
/// Terms. A *stream* runs operations in the order of their submission; two streams are unordered
/// unless an event orders them. An *event* marks a point of a stream. Memory of the device and of
/// the host is named by address; on the host back end both are ordinary memory.
///
/// A device can be *lost* to the process (Device::lost()): after some errors a driver refuses
/// everything, whoever caused them. From then on, for good: submissions and whatever makes
/// something throw DeviceError, which says since when and why; a record succeeds and its event is
/// failed; pending events are failed; what was seen done stays done. So a failed event of a lost
/// device says nothing about whether its point was reached: ask LostMemory. While memory is in
/// doubt, nothing that the device may touch is given back: destroyed buffers are not freed,
/// destroyed registrations not unregistered, and the memory below a registration has to be kept by
/// its owner.
namespace kvferry::gpu {

enum class CopyDirection : std::uint8_t { kDeviceToHost, kHostToDevice };
[[nodiscard]] const char* to_string(CopyDirection direction);

using kvferry::CopyRun;

/// Most descriptors of one batch call that any back end takes (drivers fault on more:
/// vllm#49276, and HIP above 8,192).
inline constexpr std::size_t kMaxBatchRuns = 4096;

/// Which calls of the driver Stream::copy() makes of its runs.
enum class CopyCall : std::uint8_t {
  /// The batch call for more than one run if DeviceTraits::batches_by_default and the stream takes
  /// it, else one call per run.
  kDeviceDefault,
  /// One asynchronous call per run.
  kPerRun,
  /// The batch call, for a single run too. A stream that takes none (DeviceTraits::max_batch_runs
  /// is 0, or the legacy default stream) makes one call per run.
  kBatch
};
[[nodiscard]] const char* to_string(CopyCall call);

/// How urgent the kernels of a stream are. A driver gives a multiprocessor that becomes free to the
/// most urgent kernel that waits, and takes it from none that runs. Copies have no priority
/// (cuStreamCreateWithPriority).
enum class StreamPriority : std::uint8_t {
  kNormal,  ///< As a stream that asked for nothing.
  kHigh     ///< The greatest that the device has, which may be the normal one.
};

/// Devices whose links and drivers behave alike. kCudaOlder: below sm_90.
enum class DeviceFamily : std::uint8_t { kHost, kCudaOlder, kCuda90, kHip };
[[nodiscard]] const char* to_string(DeviceFamily family);

/// What a device can do, for whoever chooses among the ways to copy. Does not change while it
/// lives.
struct DeviceTraits {
  DeviceFamily family = DeviceFamily::kHost;
  /// Most runs of one batch call, at most kMaxBatchRuns; 0: the driver has no such call.
  std::size_t max_batch_runs = 0;
  /// Whether gather() and scatter() can be had.
  bool has_pack_kernels = false;
  /// Whether the batch call is trusted where nobody asks for it (CopyCall::kBatch). Not on HIP: its
  /// batch call corrupts device memory while graphs are replayed (rocm-systems#11662).
  bool batches_by_default = true;
  /// 0 on the host back end.
  std::uint32_t num_multiprocessors = 0;
};

/// unrecorded -> pending -> done | failed. `kFailed`: an operation of the stream between the
/// previous record on that stream and this one failed, or the stream had failed for good before. A
/// failed event stays failed until it is recorded again.
enum class EventState : std::uint8_t { kUnrecorded, kPending, kDone, kFailed };

/// A point in a stream. Thread-safe to query; recorded by one thread at a time. Destroying a
/// pending event is legal and waits for nothing.
class Event {
 public:
  virtual ~Event() = default;
  [[nodiscard]] virtual EventState query() const = 0;
  /// Waits until the event is done or failed, at most `bound`; returns the state then. An
  /// unrecorded event returns at once.
  [[nodiscard]] virtual EventState wait(std::chrono::nanoseconds bound) const = 0;
  /// Why it failed; empty unless kFailed.
  [[nodiscard]] virtual std::string failure() const = 0;
  /// Time the device spent between `from` (done, same device) and this event (done). Throws
  /// DeviceError if either is not done, or if the device cannot tell.
  [[nodiscard]] virtual std::chrono::nanoseconds elapsed_since(const Event& from) const = 0;
};

/// An ordered queue of device work. Submissions come from one thread at a time. Every submission
/// either throws DeviceError, and then nothing of it runs, or is in the queue. A destroyed stream
/// first waits for its work; on a driver's lost device it waits for nothing.
class Stream {
 public:
  virtual ~Stream() = default;

  /// Marks this point in `event` (made by the same device). A pending event may be recorded again:
  /// it then means the new point, while waits that were submitted earlier keep the old one.
  virtual void record(Event& event) = 0;
  /// Later work of this stream starts only after `event` is done or failed. An unrecorded event is
  /// a broken invariant.
  virtual void wait(const Event& event) = 0;

  /// Copies `runs` (at most kMaxBatchRuns, no order among them; none is no work) by the calls that
  /// `call` names; the bytes are the same whichever it is. The host side of each run lies within
  /// one registration. `runs` is copied before the call returns. Host memory that is read is read
  /// in stream order or before; it must be stable until the copy's event is done.
  virtual void copy(CopyDirection direction, std::span<const CopyRun> runs,
                    CopyCall call = CopyCall::kDeviceDefault) = 0;
  /// Packs blocks: `blocks[i]` goes to `packed + i * geometry.packed_bytes`, device memory or, by
  /// its device address, one host registration's. `geometry` and `blocks` are copied before it
  /// returns. A block outside the geometry is a DeviceError.
  virtual void gather(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                      std::uintptr_t packed) = 0;
  /// The reverse of gather().
  virtual void scatter(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                       std::uintptr_t packed) = 0;
  /// Sets `bytes` bytes of device memory to `value`.
  virtual void fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes) = 0;

  /// Waits until everything submitted ended, at most `bound`; false on time-out, and at once if the
  /// device is lost with memory in doubt. Failures do not throw here; they are in the events.
  [[nodiscard]] virtual bool synchronize(std::chrono::nanoseconds bound) = 0;
};

/// Device memory; freed by its destructor, which first waits for nothing: the owner quiesces. Never
/// freed once the device is lost.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  [[nodiscard]] virtual std::uintptr_t address() const = 0;
  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
};

/// Host memory known to the device (pinned). Unregistered by its destructor, unless the device is
/// lost: then the owner of the memory has to keep it while it is in doubt.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
  /// The address by which the device reads and writes it; may differ from the host's (HIP).
  [[nodiscard]] virtual std::uintptr_t device_address() const = 0;
};

struct MemoryInfo {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// One device. Thread-safe. Outlives everything made by it, but for what was left behind on purpose
/// because it was lost with memory in doubt.
class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual BackendKind kind() const = 0;
  /// Name, architecture and driver, for logs.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Where it hangs on the PCI bus, as sysfs writes it, in lower case: "0000:c1:00.0"; nothing for
  /// the host, or if a driver does not tell.
  [[nodiscard]] virtual std::optional<std::string> pci_address() const { return std::nullopt; }
  [[nodiscard]] virtual DeviceTraits traits() const = 0;
  [[nodiscard]] virtual MemoryInfo memory_info() const = 0;
  /// Nothing while the device is well. Sticky: `why` and `since` stay those of the first sight, and
  /// memory in doubt can only become quiet (when the driver goes down). A loss is noticed by calls
  /// that reach the device, queries of pending events among them; this one asks no driver.
  [[nodiscard]] virtual std::optional<DeviceLoss> lost() const = 0;

  /// A stream of our own. The host back end has one priority. Throws DeviceError.
  [[nodiscard]] virtual std::unique_ptr<Stream> create_stream(
      StreamPriority priority = StreamPriority::kNormal) = 0;
  /// A view of a stream of the engine's (cudaStream_t, hipStream_t as an integer). On the host back
  /// end the engine computes on the calling thread: the view runs each operation before the call
  /// returns, and the handle is ignored. Throws DeviceError.
  [[nodiscard]] virtual std::unique_ptr<Stream> view_stream(std::uintptr_t native_handle) = 0;
  /// Throws DeviceError.
  [[nodiscard]] virtual std::unique_ptr<Event> create_event() = 0;
  /// Makes ready what gather() and scatter() of `geometry` need: its table on the device, the
  /// kernels. Waits for that, so that no later call does; without it the first use pays. Throws
  /// DeviceError, in one line if the build has no kernels for the device.
  virtual void prepare(const BlockGeometry& geometry) = 0;
  /// Gives back the device memory that prepare(), or the first use, took for `geometry`: no work
  /// that uses it is under way. It may be prepared again. What no geometry owns stays, as kernels
  /// do. Never throws.
  virtual void forget(const BlockGeometry& geometry) = 0;
  /// Throws ResourceError naming the bytes asked for and free.
  [[nodiscard]] virtual std::unique_ptr<DeviceBuffer> allocate(std::uint64_t bytes) = 0;
  /// Registers [address, address + bytes), which may not overlap a live registration. Throws
  /// DeviceError; nothing is registered then.
  [[nodiscard]] virtual std::unique_ptr<HostRegistration> register_host(void* address,
                                                                        std::uint64_t bytes) = 0;
};

}  // namespace kvferry::gpu
