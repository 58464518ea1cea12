// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace kvferry {

/// The number in an environment variable, if it is set. Throws std::invalid_argument for any other
/// text.
inline std::optional<std::uint64_t> asked(const char* name) {
  const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return text == nullptr ? std::nullopt : std::optional<std::uint64_t>(std::stoull(text));
}

/// The number in an environment variable, or `otherwise`.
inline std::uint64_t asked(const char* name, std::uint64_t otherwise) {
  return asked(name).value_or(otherwise);
}

}  // namespace kvferry
