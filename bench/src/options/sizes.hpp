// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Sizes and rates as people write them. KiB, MiB, GiB are powers of 1024; kB, MB, GB of 1000.
namespace kvferry::bench {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

/// Reads "8KiB", "1GiB", "1.5 MB", "4096". A size is at least one byte. Throws a ConfigError with
/// examples.
[[nodiscard]] std::uint64_t bytes_from(std::string_view text);

/// Reads bytes per second: "4GB/s", "4GB", "500MB/s". Throws a ConfigError with examples.
[[nodiscard]] double rate_from(std::string_view text);

/// Writes a size in the largest binary unit that gives a whole number: "8 KiB", "1000 B".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

}  // namespace kvferry::bench
