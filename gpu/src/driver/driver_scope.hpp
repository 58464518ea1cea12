// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/driver_context.hpp"

namespace kvferry::gpu {

/// The device is current on this thread, and its calls are safe beside a capture, for a scope. If
/// the driver refuses, the calls within say so.
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
