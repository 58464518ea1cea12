// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/gate.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/deadline.hpp"

#include <string>
#include <utility>

namespace kvferry {

Gate::Holder& Gate::Holder::operator=(Holder&& other) noexcept {
  if (this != &other) {
    leave();
    gate_ = std::exchange(other.gate_, nullptr);
  }
  return *this;
}

void Gate::Holder::leave() noexcept {
  if (gate_ == nullptr) return;
  Gate* gate = std::exchange(gate_, nullptr);
  // Notified under the lock: the closer may destroy the gate as soon as it sees zero.
  MutexLock lock(gate->mutex_);
  --gate->num_inside_;
  if (gate->num_inside_ == 0) gate->left_.notify_all();
}

Gate::~Gate() {
  KVFERRY_CHECK(num_inside() == 0, "a Gate died with " + std::to_string(num_inside()) + " inside");
}

std::optional<Gate::Holder> Gate::enter() {
  MutexLock lock(mutex_);
  if (closed_) return std::nullopt;
  ++num_inside_;
  return Holder(this);
}

bool Gate::close(std::chrono::nanoseconds bound) {
  const Deadline deadline(bound);
  MutexLock lock(mutex_);
  closed_ = true;
  while (num_inside_ != 0) {
    if (deadline.passed()) return false;
    left_.wait_for(mutex_, deadline.remaining());
  }
  return true;
}

bool Gate::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

std::uint64_t Gate::num_inside() const {
  MutexLock lock(mutex_);
  return num_inside_;
}

}  // namespace kvferry
