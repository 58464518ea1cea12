// SPDX-License-Identifier: Apache-2.0
#include "lookups.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {

void Lookups::keep(Entry& entry, const Request& request, LookupAnswer answer) const {
  entry.answer = std::move(answer);
  entry.era = era_;
  entry.generation = request.generation;
}

const LookupAnswer& Lookups::find(const Request& request, std::uint32_t first,
                                  std::uint32_t limit) {
  Entry& entry = entries_.of(request);
  LookupAnswer& answer = entry.answer;
  const bool same_start = is_valid(entry, request) && answer.first == first;
  if (same_start && answer.eviction_epoch == tier_.eviction_epoch() && answer.limit == limit) {
    return answer;
  }
  // A request that waits for blocks asks in every step, so most of its last answer is still valid.
  LookupAnswer known = same_start ? std::move(answer) : LookupAnswer{};
  keep(entry, request, search_.find(request.keys, first, limit, std::move(known)));
  return answer;
}

Lookups::Taken Lookups::take(const Request& request, std::uint32_t num_hashes,
                             std::span<const std::span<const BlockId>> tables) {
  Entry& entry = entries_.of(request);
  const LookupAnswer answer = std::exchange(entry.answer, {});
  Taken taken{answer.first, answer.first + num_hashes, is_valid(entry, request), std::nullopt};
  entry.era = 0;
  if (taken.was_valid) taken.leased = search_.lease(request.keys, answer, taken.end, tables);
  return taken;
}

void Lookups::await(const Request& request) {
  Entry& entry = entries_.of(request);
  // If nothing is evicted until then, this is also the answer of the first lookup.
  const std::uint32_t end = std::min(request.num_hashes, request.load_limit);
  keep(entry, request, search_.await(request.keys, end));
  awaited_to_.of(request) = entry.answer.end;
}

void Lookups::on_keys_dropped(const Request& request, std::uint32_t left) {
  entries_.of(request).era = 0;
  std::uint32_t& end = awaited_to_.of(request);
  end = std::min(end, left);
}

}  // namespace kvferry::connector
