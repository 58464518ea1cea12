// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/trace.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvferry::bench::trace {

/// One kind of synthetic traffic, for a tier of kFamilyCapacity blocks.
struct Family {
  const char* name;  ///< Without blanks and commas.
  const char* about;
  Trace (*make)(std::uint64_t seed);
};
inline constexpr std::uint32_t kFamilyCapacity = 3'000;

/// Kinds of traffic that favour different policies: popularity, loops, scans, conversations,
/// mixtures and changes of phase. The same seed gives the same trace.
[[nodiscard]] std::span<const Family> families();

}  // namespace kvferry::bench::trace
