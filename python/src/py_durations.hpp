// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace kvferry::python {

/// Longest time that a setting may name, in seconds: 31 years. Sums of some such times and the
/// monotonic clock stay far below what nanoseconds in 64 bits can say.
inline constexpr double kMaxSeconds = 1e9;

/// The only way from a number of Python's to a duration. Throws ConfigError naming the key, the
/// value and the range for what is negative, more than kMaxSeconds, or not a number.
[[nodiscard]] std::chrono::nanoseconds seconds_of(const char* key, double value);
/// The same of a number of microseconds.
[[nodiscard]] std::chrono::nanoseconds microseconds_of(const char* key, double value);

}  // namespace kvferry::python
