// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace kvferry {

/// Keeps `object` until the process has ended. The object is never destroyed, because a lost device
/// could still touch its memory. It stays reachable, so leak checkers do not report it. A null
/// pointer is ignored. Thread-safe.
void bury(std::shared_ptr<void> object);

}  // namespace kvferry
