// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/device.hpp"

#include "loss_state.hpp"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

namespace kvferry::gpu {

struct HostContext;

/// One record of an event: pending until finish(), then done or failed for ever. Shared by the
/// event, the stream that will finish it and the streams that wait for it, so that each may end
/// first. Thread-safe.
///
/// On a lost device every pending record is failed, whenever its point is reached.
class HostRecord {
 public:
  explicit HostRecord(std::shared_ptr<const LossState> loss) : loss_(std::move(loss)) {}

  /// Called once. An empty `failure` means done.
  void finish(std::string failure);

  [[nodiscard]] EventState state() const;
  [[nodiscard]] EventState wait(std::chrono::nanoseconds bound) const;
  /// Returns when finish() was called, or when the device runs nothing any more: what a stream
  /// waits for, which goes by the work before the record and not by what the host is told of it.
  void wait_reached() const;
  [[nodiscard]] std::string failure() const;
  /// When it was finished; meaningless while pending.
  [[nodiscard]] std::chrono::steady_clock::time_point finished_at() const;

 private:
  /// The state, after a look at the device.
  [[nodiscard]] EventState settle() const KVFERRY_REQUIRES(mutex_);

  const std::shared_ptr<const LossState> loss_;
  mutable Mutex mutex_;
  mutable CondVar finished_;
  bool reached_ KVFERRY_GUARDED_BY(mutex_) = false;
  mutable EventState state_ KVFERRY_GUARDED_BY(mutex_) = EventState::kPending;
  mutable std::string failure_ KVFERRY_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point finished_at_ KVFERRY_GUARDED_BY(mutex_);
};

class HostEvent final : public Event {
 public:
  explicit HostEvent(HostContext& context);
  HostEvent(const HostEvent&) = delete;
  HostEvent& operator=(const HostEvent&) = delete;
  ~HostEvent() override;

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
  HostContext& context_;
  mutable Mutex mutex_;
  std::shared_ptr<const HostRecord> record_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
