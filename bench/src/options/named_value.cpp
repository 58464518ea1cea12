// SPDX-License-Identifier: Apache-2.0
#include "options/named_value.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>

#include <string>

namespace kvferry::bench {

std::size_t place_of(std::string_view text, std::span<const char* const> names,
                     std::string_view option) {
  std::string known;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return i;
    known += i == 0 ? "" : i + 1 < names.size() ? ", " : " or ";
    known += names[i];
  }
  throw ConfigError(fmt::format("'{}' is not a value of {}: write {}", text, option, known));
}

}  // namespace kvferry::bench
