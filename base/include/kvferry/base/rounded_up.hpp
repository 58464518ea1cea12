// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry {

/// The least multiple of `unit` (> 0) that is not below `value`; their sum must not overflow.
[[nodiscard]] constexpr std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace kvferry
