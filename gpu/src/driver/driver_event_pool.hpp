// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"

#include "driver/driver_api.hpp"

#include <deque>
#include <vector>

namespace kvferry::gpu {

class DriverContext;

/// The vendor events of one device. An event that was given back pending is reused only once it is
/// done: whoever waits for it in a stream keeps the point. Thread-safe.
class DriverEventPool {
 public:
  explicit DriverEventPool(DriverContext& context) : context_(context) {}
  DriverEventPool(const DriverEventPool&) = delete;
  DriverEventPool& operator=(const DriverEventPool&) = delete;
  /// Destroys all events, waiting for none.
  ~DriverEventPool();

  /// An event that nothing waits for. Within a DriverScope. Throws DeviceError.
  [[nodiscard]] EventHandle take();
  /// Never fails. `state` is the last known of the event's record; a failed event is destroyed.
  void give_back(EventHandle event, EventState state);

 private:
  /// Of the events given back pending, one that is done by now; else none.
  [[nodiscard]] EventHandle reclaim();

  DriverContext& context_;
  Mutex mutex_;
  std::vector<EventHandle> free_ KVFERRY_GUARDED_BY(mutex_);
  /// Oldest first.
  std::deque<EventHandle> pending_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
