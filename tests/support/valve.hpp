// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvferry::transfer {

/// Holds back or fails operations of the host device, by kind. Thread-safe.
class Valve {
 public:
  using Kind = gpu::OperationInfo::Kind;

  /// Operations of this kind wait from now on, but for the next `let_through`, which may be waiting
  /// already; those that have begun go on.
  void hold(Kind kind, std::uint64_t let_through = 0);
  void open(Kind kind);
  void open_all();
  /// The `nth` operation of this kind from now on (from 1) fails.
  void fail_nth(Kind kind, std::uint64_t nth);

  /// Operations of this kind take up to so much longer, each by another time, from now on.
  void dawdle(Kind kind, std::chrono::microseconds most);

  /// The device is lost with the `nth` operation of this kind from now on (from 1), which is held
  /// back first like every other.
  void lose_nth(Kind kind, std::uint64_t nth, gpu::LostMemory memory);

  /// Operations of this kind that came, held back or not.
  [[nodiscard]] std::uint64_t num_arrived(Kind kind) const;

  /// The device's interceptor.
  [[nodiscard]] gpu::OperationVerdict pass(const gpu::OperationInfo& info);

 private:
  struct Gate {
    bool held = false;
    std::uint64_t let_through = 0;
    std::uint64_t fail_in = 0;
    std::uint64_t num_arrived = 0;
    std::uint64_t lose_in = 0;
    std::chrono::microseconds most_delay{0};
    gpu::LostMemory loses = gpu::LostMemory::kInDoubt;
  };
  [[nodiscard]] Gate& gate(Kind kind) KVFERRY_REQUIRES(mutex_) {
    return gates_[static_cast<std::size_t>(kind)];
  }

  mutable Mutex mutex_;
  CondVar opened_;
  std::array<Gate, static_cast<std::size_t>(Kind::kFill) + 1> gates_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::transfer
