// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/device.hpp"

#include "driver/driver_record.hpp"

#include <chrono>
#include <memory>
#include <string>

namespace kvferry::gpu {

class DriverContext;

/// An event that refers to its latest record. It has no vendor event of its own, because each
/// record takes one from the pool.
class DriverEvent final : public Event {
 public:
  explicit DriverEvent(DriverContext& context);
  DriverEvent(const DriverEvent&) = delete;
  DriverEvent& operator=(const DriverEvent&) = delete;
  ~DriverEvent() override;

  [[nodiscard]] EventState query() const override;
  [[nodiscard]] EventState wait(std::chrono::nanoseconds bound) const override;
  [[nodiscard]] std::string failure() const override;
  [[nodiscard]] std::chrono::nanoseconds elapsed_since(const Event& from) const override;

  /// From now on the event means `record`.
  void refer_to(std::shared_ptr<const DriverRecord> record);
  /// The current record; null if there was none yet.
  [[nodiscard]] std::shared_ptr<const DriverRecord> record() const;

  /// `event` as an event of the device of `context`; throws DeviceError if another made it.
  [[nodiscard]] static const DriverEvent& of(const Event& event, const DriverContext& context);
  [[nodiscard]] static DriverEvent& of(Event& event, const DriverContext& context);

 private:
  DriverContext& context_;
  mutable Mutex mutex_;
  std::shared_ptr<const DriverRecord> record_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
