// SPDX-License-Identifier: Apache-2.0
#include "host/host_link_engine.hpp"

namespace kvferry::gpu {

HostLinkEngine::Turn HostLinkEngine::enter(std::uint64_t rank) {
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    const auto self = waiting_.insert(rank);
    while (occupied_ || *waiting_.begin() != rank) left_.wait(mutex_);
    waiting_.erase(self);
    occupied_ = true;
    is_first = !was_used_;
    was_used_ = true;
  }
  return {*this, is_first};
}

std::uint64_t HostLinkEngine::num_waiting() const {
  MutexLock lock(mutex_);
  return waiting_.size();
}

void HostLinkEngine::leave() {
  MutexLock lock(mutex_);
  occupied_ = false;
  left_.notify_all();
}

}  // namespace kvferry::gpu
