// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvferry::bench {

/// The direction of a row's bytes.
enum class Traffic : std::uint8_t { kHostToDevice, kDeviceToHost, kBoth };

/// "h2d", "d2h", "both".
[[nodiscard]] const char* to_string(Traffic traffic);
/// The inverse of to_string(); also reads "load" and "store". Throws ConfigError.
[[nodiscard]] Traffic traffic_from(std::string_view text);
/// One or two.
[[nodiscard]] std::vector<gpu::CopyDirection> directions(Traffic traffic);

}  // namespace kvferry::bench
