// SPDX-License-Identifier: Apache-2.0
#include "py_durations.hpp"

#include "kvferry/base/error.hpp"

#include <cstdint>
#include <sstream>

namespace kvferry::python {
namespace {

std::chrono::nanoseconds duration_of(const char* key, double value, double units_per_second,
                                     const char* unit) {
  const double most = kMaxSeconds * units_per_second;
  // So written that what is not a number is refused.
  if (!(value >= 0 && value <= most)) {
    std::ostringstream message;
    message << key << " is " << value << "; expected a number of " << unit << " from 0 to " << most;
    throw ConfigError(message.str());
  }
  constexpr double kNanosecondsPerSecond = 1e9;
  return std::chrono::nanoseconds(
      static_cast<std::int64_t>(value / units_per_second * kNanosecondsPerSecond));
}

}  // namespace

std::chrono::nanoseconds seconds_of(const char* key, double value) {
  return duration_of(key, value, 1, "seconds");
}

std::chrono::nanoseconds microseconds_of(const char* key, double value) {
  return duration_of(key, value, 1e6, "microseconds");
}

}  // namespace kvferry::python
