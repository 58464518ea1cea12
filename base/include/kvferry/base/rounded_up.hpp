// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry {

/// The smallest multiple of `unit` (> 0) that is at least `value`. The sum of both must not
/// overflow.
[[nodiscard]] constexpr std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace kvferry
