// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace kvferry {

/// What takes longer hangs.
inline constexpr std::chrono::seconds kHang{120};

}  // namespace kvferry
