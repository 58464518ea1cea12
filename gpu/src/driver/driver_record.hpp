// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/device.hpp"

#include "driver/driver_api.hpp"

#include <chrono>
#include <string>

namespace kvferry::gpu {

class DriverContext;

/// One record of an event. It is pending until the driver reports that its point was reached, and
/// then done or failed permanently. The event and the stream that recorded it share it.
/// Thread-safe.
class DriverRecord {
 public:
  /// Owns `event`, which was recorded. With a `failure` it becomes failed instead of done, but not
  /// before its point is reached, because the part of the submission that is in the queue still
  /// runs.
  DriverRecord(DriverContext& context, EventHandle event, std::string failure);
  /// A record on a lost context: failed from the start.
  explicit DriverRecord(DriverContext& context);
  DriverRecord(const DriverRecord&) = delete;
  DriverRecord& operator=(const DriverRecord&) = delete;
  ~DriverRecord();

  [[nodiscard]] EventState state() const;
  [[nodiscard]] EventState wait(std::chrono::nanoseconds bound) const;
  /// Empty unless failed.
  [[nodiscard]] std::string failure() const;
  [[nodiscard]] EventHandle handle() const { return event_; }

 private:
  [[nodiscard]] EventState known_state() const;
  [[nodiscard]] EventState finish(std::string failure) const;

  DriverContext& context_;
  const EventHandle event_{};
  /// The failure of the stream at the time of the record.
  const std::string inherited_failure_;
  mutable Mutex mutex_;
  mutable EventState state_ KVFERRY_GUARDED_BY(mutex_) = EventState::kPending;
  mutable std::string failure_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
