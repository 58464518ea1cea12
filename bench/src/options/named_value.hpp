// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace kvferry::bench {

/// The place of `text` among `names`, which are the values of the option `option`. Throws a
/// ConfigError that lists them.
[[nodiscard]] std::size_t place_of(std::string_view text, std::span<const char* const> names,
                                   std::string_view option);

/// The same for an enumeration whose values have these names, in their order.
template <class E>
[[nodiscard]] E value_from(std::string_view text, std::span<const char* const> names,
                           std::string_view option) {
  return static_cast<E>(place_of(text, names, option));
}

}  // namespace kvferry::bench
