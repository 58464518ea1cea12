// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

namespace kvferry::gpu {

/// A driver's bus id in the notation of sysfs: CUDA's has upper-case digits.
[[nodiscard]] inline std::string pci_address_of(std::string bus_id) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(), [](char digit) {
    return digit >= 'A' && digit <= 'F' ? static_cast<char>(digit - 'A' + 'a') : digit;
  });
  return bus_id;
}

}  // namespace kvferry::gpu
