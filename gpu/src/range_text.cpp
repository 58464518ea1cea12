// SPDX-License-Identifier: Apache-2.0
#include "range_text.hpp"

#include <array>
#include <charconv>

namespace kvferry::gpu {

std::string range_text(std::uintptr_t address, std::uint64_t bytes) {
  std::array<char, 2 * sizeof(address)> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), address, 16).ptr;
  return std::to_string(bytes) + " bytes at 0x" + std::string(digits.data(), end);
}

}  // namespace kvferry::gpu
