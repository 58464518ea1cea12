// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry::cpu_tier {

/// Slots [first, end) of one slab class.
struct SlotRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
  [[nodiscard]] std::uint32_t size() const { return end - first; }
};

}  // namespace kvferry::cpu_tier
