// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"

#include <chrono>
#include <cstdint>
#include <optional>

namespace kvferry {

/// Keeps work from outliving its owner. A service owns one Gate; each piece of work holds a Holder;
/// `close()` refuses new holders and waits for the old ones. Thread-safe. The destructor checks
/// that nobody is inside.
class Gate {
 public:
  /// Proof of being inside. Move-only; leaving is its destruction.
  class Holder {
   public:
    Holder(Holder&& other) noexcept : gate_(other.gate_) { other.gate_ = nullptr; }
    Holder& operator=(Holder&& other) noexcept;
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;
    ~Holder() { leave(); }

   private:
    friend class Gate;
    explicit Holder(Gate* gate) : gate_(gate) {}
    void leave() noexcept;
    Gate* gate_;
  };

  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate();

  /// A Holder, or nothing once the gate is closed.
  [[nodiscard]] std::optional<Holder> enter();

  /// Refuses new holders and waits until the last one left, at most `bound`.
  /// Returns whether nobody is inside. Idempotent.
  [[nodiscard]] bool close(std::chrono::nanoseconds bound);

  [[nodiscard]] bool closed() const;
  [[nodiscard]] std::uint64_t num_inside() const;

 private:
  mutable Mutex mutex_;
  CondVar left_;
  std::uint64_t num_inside_ KVFERRY_GUARDED_BY(mutex_) = 0;
  bool closed_ KVFERRY_GUARDED_BY(mutex_) = false;
};

}  // namespace kvferry
