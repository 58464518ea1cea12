// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

namespace kvferry {

/// Divides by a constant with a multiplication (Lemire, Kaser, Kurz: "Faster remainder by direct
/// computation", Software: Practice and Experience 49, 2019), in a quarter of a division's time.
/// Exact for all operands.
class Divisor {
 public:
  /// `divisor` > 0.
  explicit constexpr Divisor(std::uint32_t divisor)
      : divisor_(divisor), inverse_(std::numeric_limits<std::uint64_t>::max() / divisor + 1) {}

  [[nodiscard]] constexpr std::uint32_t quotient(std::uint32_t number) const {
    // The inverse of 1 does not fit.
    if (divisor_ == 1) return number;
    return static_cast<std::uint32_t>((static_cast<Wide>(inverse_) * number) >> 64U);
  }
  [[nodiscard]] constexpr std::uint32_t remainder(std::uint32_t number) const {
    return number - quotient(number) * divisor_;
  }

 private:
  __extension__ using Wide = unsigned __int128;

  std::uint32_t divisor_;
  std::uint64_t inverse_;
};

}  // namespace kvferry
