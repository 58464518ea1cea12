// SPDX-License-Identifier: Apache-2.0
#include "py_tier_options.hpp"

#include "kvferry/base/error.hpp"

#include <string>

namespace kvferry::python {

std::optional<cpu_tier::PageKind> page_kind(const OptionValue& value) {
  const std::string name = value.text();
  if (name == "auto") return std::nullopt;
  return cpu_tier::page_kind_from(name);
}

cpu_tier::Eviction eviction(const OptionValue& value) {
  return cpu_tier::eviction_from(value.text());
}

cpu_tier::AtExit at_exit(const OptionValue& value) {
  return value.flag() ? cpu_tier::AtExit::kKeep : cpu_tier::AtExit::kRemove;
}

std::optional<connector::SharedTierWish> shared_tier_wish(connector::SharedTierWish given,
                                                          std::uint32_t world_size) {
  if (given.tier.path.empty()) return std::nullopt;
  if (given.instance.empty()) {
    throw ConfigError("shared_path is set and shared_instance is not; expected both");
  }
  given.tier.num_ranks = world_size;
  return given;
}

}  // namespace kvferry::python
