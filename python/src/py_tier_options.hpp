// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/cpu_tier/peers/shared_tier.hpp"
#include "kvferry/cpu_tier/policy/tier_options.hpp"

#include "py_options.hpp"

#include <cstdint>
#include <optional>

/// Readers for options of a tier that several consumers have.
namespace kvferry::python {

/// The kind of pages with that name; unset for "auto". Throws ConfigError.
[[nodiscard]] std::optional<cpu_tier::PageKind> page_kind(const OptionValue& value);

/// The eviction policy with that name. Throws ConfigError.
[[nodiscard]] cpu_tier::Eviction eviction(const OptionValue& value);

/// Whether the file of a shared tier is kept when its last user ends.
[[nodiscard]] cpu_tier::AtExit at_exit(const OptionValue& value);

/// The shared tier that an engine of `world_size` ranks joins; unset if `given` has no path. Throws
/// ConfigError for a path without an instance.
[[nodiscard]] std::optional<connector::SharedTierWish> shared_tier_wish(
    connector::SharedTierWish given, std::uint32_t world_size);

}  // namespace kvferry::python
