// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iosfwd>

namespace kvferry::bench {

/// The width of text for which nothing says another one.
inline constexpr std::size_t kUsualWidth = 100;

/// How many columns of text `out` has: COLUMNS, if the environment has it; else the terminal's, if
/// `out` is standard output and a terminal; else kUsualWidth.
[[nodiscard]] std::size_t width_of(const std::ostream& out);

}  // namespace kvferry::bench
