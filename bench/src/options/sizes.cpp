// SPDX-License-Identifier: Apache-2.0
#include "options/sizes.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace kvferry::bench {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                          {"B", 1},
                                          {"KiB", 0x1p10},
                                          {"MiB", 0x1p20},
                                          {"GiB", 0x1p30},
                                          {"TiB", 0x1p40},
                                          {"kB", 1e3},
                                          {"MB", 1e6},
                                          {"GB", 1e9},
                                          {"TB", 1e12}}};

// The largest integer up to which a double holds every integer exactly.
constexpr double kMostBytes = 0x1p53;

std::optional<double> amount(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || !std::isfinite(number) || number <= 0) return std::nullopt;
  std::string_view unit(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& known : kUnits) {
    if (unit == known.name && number * known.bytes <= kMostBytes) return number * known.bytes;
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t bytes_from(std::string_view text) {
  const auto bytes = amount(text);
  if (!bytes || *bytes < 1 || *bytes != std::floor(*bytes)) {
    throw ConfigError(
        fmt::format("'{}' is not a size in bytes: write 4096, 8KiB, 1GiB or 64MB", text));
  }
  return static_cast<std::uint64_t>(*bytes);
}

double rate_from(std::string_view text) {
  std::string_view number = text;
  if (number.ends_with("/s")) number.remove_suffix(2);
  const auto rate = amount(number);
  if (!rate) throw ConfigError(fmt::format("'{}' is not a rate: write 4GB/s or 500MB/s", text));
  return *rate;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<std::pair<std::uint64_t, const char*>, 3> kNames = {
      {{kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}}};
  for (const auto& [unit, name] : kNames) {
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{} {}", bytes / unit, name);
  }
  return fmt::format("{} B", bytes);
}

}  // namespace kvferry::bench
