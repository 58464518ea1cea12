// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "meta/meta_operation.hpp"

#include <memory>

/// The operations, each on its own tier. All throw ConfigError and std::bad_alloc.
namespace kvferry::bench {

// ---- meta_lookups.cpp ----

/// Looks up the state of each key.
[[nodiscard]] std::unique_ptr<MetaOperation> make_lookup(const MetaShape& shape, Holds holds);
/// Looks up the longest readable prefix, as a scheduler does.
[[nodiscard]] std::unique_ptr<MetaOperation> make_prefix_lookup(const MetaShape& shape);

// ---- meta_stores.cpp ----

/// Reserves and commits in a full tier; each reservation evicts the same number of blocks.
[[nodiscard]] std::unique_ptr<MetaOperation> make_store(const MetaShape& shape);
/// Reserves while slots are free, and drops the reservation.
[[nodiscard]] std::unique_ptr<MetaOperation> make_free_reservation(const MetaShape& shape);

// ---- meta_uses.cpp ----

/// Leases readable blocks by key, and ends the leases.
[[nodiscard]] std::unique_ptr<MetaOperation> make_lease(const MetaShape& shape);
/// Makes readable blocks the most recent.
[[nodiscard]] std::unique_ptr<MetaOperation> make_touch(const MetaShape& shape);
/// Offers the blocks of a request to a full tier.
[[nodiscard]] std::unique_ptr<MetaOperation> make_offer(const MetaShape& shape, Holds holds);

}  // namespace kvferry::bench
