// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/injection.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvferry::fakes {

/// What a call does instead of its work.
struct FakeFault {
  enum class Kind : std::uint8_t {
    kFail,  ///< Fails with `code`, once.
    kLose,  ///< It and all later calls fail with `code`.
    kHang,  ///< Never returns.
    kSkip   ///< Does nothing and says that it went well.
  };
  Kind kind = Kind::kFail;
  int code = 0;
};

/// Faults for a process that is the stand-in's only user, read when the driver is loaded and by
/// reset(): "cuLaunchKernel 2 fail 719;cuMemAlloc 1 hang" is a list of function, number of the call
/// (from 1), `fail`, `lose`, `hang` or `skip`, and the code of the first two.
inline constexpr const char* kFakeFaultsVariable = "KVFERRY_FAKE_FAULTS";

/// What a test can ask of a stand-in driver. Thread-safe.
class FakeControl {
 public:
  virtual ~FakeControl() = default;
  /// As before the first call: nothing is alive, nothing fails, version 13.0 or 7.1, counters 0.
  virtual void reset() = 0;
  /// The vendor's number.
  virtual void set_version(int version) = 0;
  /// The stand-in has no `function` from now on (CUDA only: cuGetProcAddress does not find it).
  virtual void hide(const std::string& function) = 0;
  /// What the device is from now on: "gfx942" (HIP only).
  virtual void set_architecture(const std::string& architecture) = 0;
  /// The `nth` call from now on (from 1) of `function` fails with `code`, once.
  virtual void fail_nth(const std::string& function, std::uint64_t nth, int code) = 0;
  /// Every call fails with `code` from now on.
  virtual void lose(int code) = 0;
  /// From the process's exit handlers on, those that were registered before this call still to
  /// come, every call fails with "deinitialized" and nothing that was submitted runs any more.
  virtual void go_down_at_exit() = 0;
  /// Every piece of work takes so much longer from now on.
  virtual void slow_down(std::chrono::nanoseconds delay) = 0;
  /// Whether work that has not begun waits, on the streams that exist now and are not the default
  /// one. Calls that wait for all work do not return meanwhile.
  virtual void hold(bool held) = 0;
  /// Memory of the process is the device's, as if it had been allocated there, until other memory
  /// that overlaps it is adopted.
  virtual void adopt(std::uintptr_t address, std::size_t bytes) = 0;
  /// What was adopted there is the device's no more: work that touches it is refused.
  virtual void disown(std::uintptr_t address, std::size_t bytes) = 0;
  /// Waits until the default stream has nothing to do.
  virtual void settle() = 0;
  /// From now on blocks are damaged in copies to and from registered memory, in kernels that
  /// scatter from it, and at rest there, as by the host link. An earlier call's damage is
  /// forgotten.
  virtual void inject(const gpu::InjectionOptions& options, std::uint64_t seed) = 0;
  /// The log since the last call. Slots are host addresses.
  [[nodiscard]] virtual std::vector<gpu::InjectionEvent> take_injections() = 0;
  /// Streams of the engine's count as being captured.
  virtual void set_capturing(std::uintptr_t stream) = 0;
  /// Calls of an entry point, or launches of a kernel.
  [[nodiscard]] virtual std::uint64_t num_calls(const std::string& function) const = 0;
  /// Entries of the last batch call, and the source order that it asked for (0: none).
  [[nodiscard]] virtual std::uint64_t last_batch_runs() const = 0;
  [[nodiscard]] virtual int last_source_order() const = 0;
  /// What is alive: device allocations, events, streams, registrations, modules.
  [[nodiscard]] virtual std::uint64_t num_alive() const = 0;
  /// The priorities at which a driver would run the streams that are alive; the oldest one first.
  [[nodiscard]] virtual std::vector<int> stream_priorities() const = 0;
  /// Of the calling thread: contexts on the stack (CUDA) or the current device (HIP).
  [[nodiscard]] virtual int thread_context() const = 0;
  /// Of the calling thread; 0 is global, 2 relaxed.
  [[nodiscard]] virtual int thread_capture_mode() const = 0;
};

/// Name of the function that returns the FakeControl of a stand-in: FakeControl* (*)().
inline constexpr const char* kFakeControlSymbol = "kvferry_fake_control";

/// What a stand-in takes for a code object, so that no vendor's compiler is needed.
inline constexpr std::array<std::byte, 8> kFakeImage{std::byte{1}};

}  // namespace kvferry::fakes
