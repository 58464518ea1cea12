// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/worker/worker_engine.hpp"

#include <pybind11/pybind11.h>

#include <optional>

namespace kvferry::python {

/// How a worker is told of a shared tier: None, or a dict of `path`, `capacity_bytes`, `num_ranks`,
/// `instance` and, if it likes, `chunk_bytes` and `keep`. Throws ConfigError for another key.
[[nodiscard]] std::optional<connector::SharedTierWish> shared_tier_wish(
    const pybind11::object& given);

/// The shared tiers of this machine, for `kvferry tier`, and how one is divided.
void bind_tier(pybind11::module_& module);

}  // namespace kvferry::python
