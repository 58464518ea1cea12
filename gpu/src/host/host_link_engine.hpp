// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"

#include <cstdint>
#include <set>

namespace kvferry::gpu {

/// One direction of the simulated link: one copy passes at a time, the others wait and go by rank.
/// Thread-safe. No lock is held while a copy passes; its Turn is what keeps the others out.
class HostLinkEngine {
 public:
  /// The right to pass. Leaving is its destruction.
  class [[nodiscard]] Turn {
   public:
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { engine_.leave(); }
    /// Whether no copy passed before this one.
    [[nodiscard]] bool is_first() const { return is_first_; }

   private:
    friend class HostLinkEngine;
    Turn(HostLinkEngine& engine, bool is_first) : engine_(engine), is_first_(is_first) {}
    HostLinkEngine& engine_;
    bool is_first_;
  };

  /// Waits until nobody passes and no waiting copy has a lower rank. Equal ranks go in any order.
  Turn enter(std::uint64_t rank);
  [[nodiscard]] std::uint64_t num_waiting() const;

 private:
  void leave();

  mutable Mutex mutex_;
  CondVar left_;
  bool occupied_ KVFERRY_GUARDED_BY(mutex_) = false;
  bool was_used_ KVFERRY_GUARDED_BY(mutex_) = false;
  std::multiset<std::uint64_t> waiting_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
