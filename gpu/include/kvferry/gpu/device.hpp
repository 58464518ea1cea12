// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/base/ids.hpp"
#include "kvferry/gpu/block_geometry.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

/// The device interface: everything above gpu/ is written once against it. Three implementations:
/// host (here), cuda, hip.
///
/// Terms. A *stream* runs operations in the order of their submission; two streams are unordered
/// unless an event orders them. An *event* marks a point of a stream. Memory of the device and of
/// the host is named by address; on the host back end both are ordinary memory.
namespace kvferry::gpu {

enum class BackendKind : std::uint8_t { kHost, kCuda, kHip };
[[nodiscard]] const char* to_string(BackendKind kind);

enum class CopyDirection : std::uint8_t { kDeviceToHost, kHostToDevice };
[[nodiscard]] const char* to_string(CopyDirection direction);

/// One contiguous copy of at least one byte. Source and destination do not overlap; the
/// destinations of one batch are disjoint.
struct CopyRun {
  std::uintptr_t destination = 0;
  std::uintptr_t source = 0;
  std::uint64_t bytes = 0;
};

/// Most descriptors of one batch call that any back end takes (drivers fault on more:
/// vllm#49276, and HIP above 8,192).
inline constexpr std::size_t kMaxBatchRuns = 4096;

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
  /// DeviceError if either is not done.
  [[nodiscard]] virtual std::chrono::nanoseconds elapsed_since(const Event& from) const = 0;
};

/// An ordered queue of device work. Submissions come from one thread at a time. Every submission
/// either throws DeviceError, and then nothing of it runs, or is in the queue. A destroyed stream
/// first waits for its work.
class Stream {
 public:
  virtual ~Stream() = default;

  /// Marks this point in `event` (made by the same device). A pending event may be recorded again:
  /// it then means the new point, while waits that were submitted earlier keep the old one.
  virtual void record(Event& event) = 0;
  /// Later work of this stream starts only after `event` is done or failed. An unrecorded event is
  /// a broken invariant.
  virtual void wait(const Event& event) = 0;

  /// Copies `runs` (at most kMaxBatchRuns, no order among them; none is no work). The host side of
  /// each run lies within one registration. `runs` is copied before the call returns. Host memory
  /// that is read is read in stream order or before; it must be stable until the copy's event is
  /// done.
  virtual void copy(CopyDirection direction, std::span<const CopyRun> runs) = 0;
  /// Packs blocks: `blocks[i]` goes to `packed + i * geometry.packed_bytes` (device memory).
  /// One launch. `geometry` and `blocks` are copied before the call returns. A block outside the
  /// geometry is a DeviceError.
  virtual void gather(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                      std::uintptr_t packed) = 0;
  /// The reverse of gather().
  virtual void scatter(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                       std::uintptr_t packed) = 0;
  /// Sets `bytes` bytes of device memory to `value`.
  virtual void fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes) = 0;

  /// Waits until everything submitted ended, at most `bound`; false on time-out. Failures do not
  /// throw here; they are in the events.
  [[nodiscard]] virtual bool synchronize(std::chrono::nanoseconds bound) = 0;
};

/// Device memory; freed by its destructor, which first waits for nothing: the owner quiesces.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  [[nodiscard]] virtual std::uintptr_t address() const = 0;
  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
};

/// Host memory known to the device (pinned). Unregistered by its destructor.
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

/// One device. Thread-safe. Outlives everything made by it.
class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual BackendKind kind() const = 0;
  /// Name, architecture and driver, for logs.
  [[nodiscard]] virtual std::string description() const = 0;
  [[nodiscard]] virtual MemoryInfo memory_info() const = 0;

  /// A stream of our own.
  [[nodiscard]] virtual std::unique_ptr<Stream> create_stream() = 0;
  /// A view of a stream of the engine's (cudaStream_t, hipStream_t as an integer). On the host back
  /// end the engine computes on the calling thread: the view runs each operation before the call
  /// returns, and the handle is ignored.
  [[nodiscard]] virtual std::unique_ptr<Stream> view_stream(std::uintptr_t native_handle) = 0;
  [[nodiscard]] virtual std::unique_ptr<Event> create_event() = 0;
  /// Throws ResourceError naming the bytes asked for and free.
  [[nodiscard]] virtual std::unique_ptr<DeviceBuffer> allocate(std::uint64_t bytes) = 0;
  /// Registers [address, address + bytes), which may not overlap a live registration. Throws
  /// DeviceError; nothing is registered then.
  [[nodiscard]] virtual std::unique_ptr<HostRegistration> register_host(void* address,
                                                                        std::uint64_t bytes) = 0;
};

}  // namespace kvferry::gpu
