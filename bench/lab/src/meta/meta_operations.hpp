// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "meta/meta_operation.hpp"

#include <memory>

/// The operations, each on a tier of its own. All throw ConfigError and std::bad_alloc.
namespace kvferry::bench {

// ---- meta_lookups.cpp ----

/// The state of each key.
[[nodiscard]] std::unique_ptr<MetaOperation> make_lookup(const MetaShape& shape, Holds holds);
/// The longest readable prefix, as a scheduler asks for it.
[[nodiscard]] std::unique_ptr<MetaOperation> make_prefix_lookup(const MetaShape& shape);

// ---- meta_stores.cpp ----

/// Reserve and commit in a tier that is full; each reservation evicts as many.
[[nodiscard]] std::unique_ptr<MetaOperation> make_store(const MetaShape& shape);
/// Reserve where slots are free, and drop the reservation.
[[nodiscard]] std::unique_ptr<MetaOperation> make_free_reservation(const MetaShape& shape);

// ---- meta_uses.cpp ----

/// Leases on readable blocks by key, and their end.
[[nodiscard]] std::unique_ptr<MetaOperation> make_lease(const MetaShape& shape);
/// Readable blocks become the most recent.
[[nodiscard]] std::unique_ptr<MetaOperation> make_touch(const MetaShape& shape);
/// Blocks of a request are offered to a full tier.
[[nodiscard]] std::unique_ptr<MetaOperation> make_offer(const MetaShape& shape, Holds holds);

}  // namespace kvferry::bench
