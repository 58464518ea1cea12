// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace kvferry {

/// Keeps `object` until the process has ended: it is never destroyed, because something that nobody
/// can stop (a device that was lost) may still touch its memory. Reachable, so that a leak checker
/// knows that it is meant. Null is no burial. Thread-safe.
void bury(std::shared_ptr<void> object);

}  // namespace kvferry
