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

const LookupAnswer& Lookups::find(const Request& request, std::uint32_t num_local,
                                  std::uint32_t limit) {
  Entry& entry = entries_.of(request);
  LookupAnswer& answer = entry.answer;
  const bool same_start = is_valid(entry, request) && answer.num_local_blocks == num_local;
  if (same_start && answer.eviction_epoch == tier_.eviction_epoch() &&
      answer.num_limit_blocks == limit) {
    return answer;
  }
  // A request that waits for blocks asks in every step: most of its last answer still holds.
  LookupAnswer known = same_start ? std::move(answer) : LookupAnswer{};
  keep(entry, request, search_.find(request.keys, num_local, limit, std::move(known)));
  return answer;
}

Lookups::Taken Lookups::take(const Request& request, std::uint32_t count,
                             std::span<const std::span<const BlockId>> tables) {
  Entry& entry = entries_.of(request);
  const LookupAnswer answer = std::exchange(entry.answer, {});
  Taken taken{answer.num_local_blocks, is_valid(entry, request), std::nullopt};
  entry.era = 0;
  if (taken.was_valid) taken.leased = search_.lease(request.keys, answer, count, tables);
  return taken;
}

void Lookups::await(const Request& request) {
  Entry& entry = entries_.of(request);
  // The answer is the first lookup's, too, if nothing is evicted until then.
  keep(entry, request, search_.await(request.keys));
  num_awaited_.of(request) = entry.answer.num_blocks;
}

void Lookups::on_keys_dropped(const Request& request, std::size_t num_left) {
  entries_.of(request).era = 0;
  std::uint32_t& num_awaited = num_awaited_.of(request);
  num_awaited = std::min(num_awaited, static_cast<std::uint32_t>(num_left));
}

}  // namespace kvferry::connector
