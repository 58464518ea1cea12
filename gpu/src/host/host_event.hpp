// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/device.hpp"

#include <chrono>
#include <memory>
#include <string>

namespace kvferry::gpu {

struct HostContext;

/// One record of an event: pending until finish(), then done or failed for ever. Shared by the
/// event, the stream that will finish it and the streams that wait for it, so that each may end
/// first. Thread-safe.
class HostRecord {
 public:
  /// Called once. An empty `failure` means done.
  void finish(std::string failure);

  [[nodiscard]] EventState state() const;
  [[nodiscard]] EventState wait(std::chrono::nanoseconds bound) const;
  [[nodiscard]] std::string failure() const;
  /// When it was finished; meaningless while pending.
  [[nodiscard]] std::chrono::steady_clock::time_point finished_at() const;

 private:
  mutable Mutex mutex_;
  mutable CondVar finished_;
  EventState state_ KVFERRY_GUARDED_BY(mutex_) = EventState::kPending;
  std::string failure_ KVFERRY_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point finished_at_ KVFERRY_GUARDED_BY(mutex_);
};

class HostEvent final : public Event {
 public:
  explicit HostEvent(const HostContext& context) : context_(context) {}

  [[nodiscard]] EventState query() const override;
  [[nodiscard]] EventState wait(std::chrono::nanoseconds bound) const override;
  [[nodiscard]] std::string failure() const override;
  [[nodiscard]] std::chrono::nanoseconds elapsed_since(const Event& from) const override;

  /// From now on the event means `record`.
  void refer_to(std::shared_ptr<const HostRecord> record);
  /// The current record; null if there was none yet.
  [[nodiscard]] std::shared_ptr<const HostRecord> record() const;

  /// `event` as an event of the device of `context`; throws DeviceError if another made it.
  [[nodiscard]] static const HostEvent& of(const Event& event, const HostContext& context);
  [[nodiscard]] static HostEvent& of(Event& event, const HostContext& context);

 private:
  const HostContext& context_;
  mutable Mutex mutex_;
  std::shared_ptr<const HostRecord> record_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
