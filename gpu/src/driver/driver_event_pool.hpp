// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"

#include "driver/driver_api.hpp"

#include <deque>
#include <vector>

namespace kvferry::gpu {

class DriverContext;

/// The vendor events of one device. An event that was given back while pending is reused only after
/// it is done, so a stream that waits for it keeps its point. Thread-safe.
class DriverEventPool {
 public:
  explicit DriverEventPool(DriverContext& context) : context_(context) {}
  DriverEventPool(const DriverEventPool&) = delete;
  DriverEventPool& operator=(const DriverEventPool&) = delete;
  /// Destroys all events, without waiting for any.
  ~DriverEventPool();

  /// An event that nothing waits for. To be called within a DriverScope. Throws DeviceError.
  [[nodiscard]] EventHandle take();
  /// Gives an event back. Never fails. `state` is the last known state of the event's record; a
  /// failed event is destroyed.
  void give_back(EventHandle event, EventState state);

 private:
  /// An event that was given back while pending and is done by now; none if there is no such event.
  [[nodiscard]] EventHandle reclaim();

  DriverContext& context_;
  Mutex mutex_;
  std::vector<EventHandle> free_ KVFERRY_GUARDED_BY(mutex_);
  /// Oldest first.
  std::deque<EventHandle> pending_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
