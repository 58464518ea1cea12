// SPDX-License-Identifier: Apache-2.0
// The operations of `meta` by name.
#include "meta/meta_operations.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvferry::bench {

std::vector<std::string> MetaOperation::names() {
  return {"lookup",       "lookup-absent", "prefix",       "store",     "lease",
          "reserve-free", "touch",         "offer-absent", "offer-held"};
}

std::unique_ptr<MetaOperation> make_meta_operation(std::string_view name, const MetaShape& shape) {
  if (name == "lookup") return make_lookup(shape, Holds::kAll);
  if (name == "lookup-absent") return make_lookup(shape, Holds::kNone);
  if (name == "prefix") return make_prefix_lookup(shape);
  if (name == "store") return make_store(shape);
  if (name == "lease") return make_lease(shape);
  if (name == "reserve-free") return make_free_reservation(shape);
  if (name == "touch") return make_touch(shape);
  if (name == "offer-absent") return make_offer(shape, Holds::kNone);
  if (name == "offer-held") return make_offer(shape, Holds::kAll);
  throw ConfigError(fmt::format("'{}' is not an operation: write one of {}", name,
                                fmt::join(MetaOperation::names(), ", ")));
}

}  // namespace kvferry::bench
