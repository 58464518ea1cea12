// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include "per_request.hpp"
#include "prefix_search.hpp"
#include "request_table.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace kvferry::connector {

/// The answers that requests were given, and the turns that they wait for. An answer is searched
/// for once. It is valid until the request's keys, its generation or the tier change.
class Lookups {
 public:
  Lookups(cpu_tier::Tier& tier, const BlockGroups& groups) : tier_(tier), search_(tier, groups) {}

  /// As PrefixSearch::find(). O(1) while nothing was evicted and the question is the same. The
  /// result is valid until the next call for the request.
  [[nodiscard]] const LookupAnswer& find(const Request& request, std::uint32_t first,
                                         std::uint32_t limit);

  /// What an allocation takes from the last answer. It uses the answer up.
  struct Taken {
    std::uint32_t first = 0;  ///< The position of the last lookup at which the load begins.
    std::uint32_t end = 0;    ///< The position at which the load ends.
    bool was_valid = false;   ///< The answer still belonged to the request.
    std::optional<LeasedPrefix> leased;
  };
  /// As PrefixSearch::lease(), for `num_hashes` positions.
  [[nodiscard]] Taken take(const Request& request, std::uint32_t num_hashes,
                           std::span<const std::span<const BlockId>> tables);

  /// The request waits for its turn (PrefixSearch::await()), up to its load_limit, until
  /// end_await().
  void await(const Request& request);
  void end_await(const Request& request) {
    std::uint32_t& end = awaited_to_.of(request);
    if (end > 0) search_.end_await(request.keys, std::exchange(end, 0));
  }

  /// The request has keys up to position `left` only.
  void on_keys_dropped(const Request& request, std::uint32_t left);
  /// No answer is valid any more.
  void forget_answers() { ++era_; }
  /// The request is finished.
  void drop(const Request& request) {
    entries_.drop(request);
    awaited_to_.drop(request);
  }

 private:
  struct Entry {
    LookupAnswer answer;
    /// The answer is valid in this era and generation of the request. 0: in none.
    std::uint64_t era = 0;
    Generation generation;
  };
  [[nodiscard]] bool is_valid(const Entry& entry, const Request& request) const {
    return entry.era == era_ && entry.generation == request.generation;
  }
  void keep(Entry& entry, const Request& request, LookupAnswer answer) const;

  cpu_tier::Tier& tier_;
  PrefixSearch search_;
  PerRequest<Entry> entries_;
  /// The position up to which the tier keeps the prefix for the request's turn. It is a separate
  /// member because every step of a running request asks for it.
  PerRequest<std::uint32_t> awaited_to_;
  std::uint64_t era_ = 1;
};

}  // namespace kvferry::connector
