// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/driver_context.hpp"

namespace kvferry::gpu {

/// Within this scope the device is current on this thread, and its calls are safe during a capture.
/// If the driver refuses that, the calls within the scope report it.
class DriverScope {
 public:
  explicit DriverScope(DriverContext& context) : api_(context.api()) {
    const auto entered = api_.enter();
    entered_ = context.note(entered.result, "make the device current").ok();
    before_ = entered.value;
  }
  DriverScope(const DriverScope&) = delete;
  DriverScope& operator=(const DriverScope&) = delete;
  ~DriverScope() {
    if (entered_) api_.leave(before_);
  }

 private:
  DriverApi& api_;
  ThreadState before_;
  bool entered_ = false;
};

}  // namespace kvferry::gpu
