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
/// for once, and is good until the request's keys, its generation or the tier have changed.
class Lookups {
 public:
  Lookups(cpu_tier::Tier& tier, const BlockGroups& groups) : tier_(tier), search_(tier, groups) {}

  /// As PrefixSearch::find(). O(1) while nothing was evicted and the question is the same. Valid
  /// until the next call for the request.
  [[nodiscard]] const LookupAnswer& find(const Request& request, std::uint32_t num_local,
                                         std::uint32_t limit);

  /// What an allocation makes of the last answer, which is used up by it.
  struct Taken {
    std::uint32_t first_block = 0;  ///< After the local ones of the last lookup.
    bool was_valid = false;         ///< The answer still was the request's.
    std::optional<LeasedPrefix> leased;
  };
  /// As PrefixSearch::lease().
  [[nodiscard]] Taken take(const Request& request, std::uint32_t count,
                           std::span<const std::span<const BlockId>> tables);

  /// The request waits for its turn from now on (PrefixSearch::await()), until end_await().
  void await(const Request& request);
  void end_await(const Request& request) {
    std::uint32_t& num_blocks = num_awaited_.of(request);
    if (num_blocks > 0) search_.end_await(request.keys, std::exchange(num_blocks, 0));
  }

  /// The request has only its first `num_left` keys left.
  void on_keys_dropped(const Request& request, std::size_t num_left);
  /// No answer is good any more.
  void forget_answers() { ++era_; }
  /// The request is finished.
  void drop(const Request& request) {
    entries_.drop(request);
    num_awaited_.drop(request);
  }

 private:
  struct Entry {
    LookupAnswer answer;
    /// The answer is good in this era and generation of the request. 0: in none.
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
  /// Positions from the first whose blocks the tier keeps for the request's turn. Apart, because
  /// every step of a request that runs asks for it.
  PerRequest<std::uint32_t> num_awaited_;
  std::uint64_t era_ = 1;
};

}  // namespace kvferry::connector
