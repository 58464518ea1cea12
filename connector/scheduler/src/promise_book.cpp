// SPDX-License-Identifier: Apache-2.0
#include "promise_book.hpp"

#include <algorithm>

namespace kvferry::connector {
namespace {

/// The two kinds have different prefixes, because clients choose the names of sessions.
std::string owner_of(const Request& request, std::string_view session) {
  return session.empty() ? "request " + request.engine_id : "session " + std::string(session);
}

std::size_t num_keys_in(const GroupKeys& keys) {
  std::size_t sum = 0;
  for (const auto& of_group : keys) sum += of_group.size();
  return sum;
}

}  // namespace

void PromiseBook::on_request(const Request& request, std::string_view session,
                             std::span<const ClientHint> hints) {
  Wish& wish = wishes_.of(request);
  wish = {owner_of(request, session), std::nullopt};
  for (const ClientHint& hint : hints) {
    const std::string named = hint.session.empty() ? wish.owner : owner_of(request, hint.session);
    const bool is_own = named == wish.owner;
    const bool at_end =
        is_own && (hint.action == HintAction::kRetain || hint.action == HintAction::kDemote);
    if (at_end) {
      wish.at_end = hint;
    } else {
      do_now(request, named, hint);
    }
  }
}

void PromiseBook::do_now(const Request& request, std::string_view owner, const ClientHint& hint) {
  const auto found = promises_.find(owner);
  const bool is_own = owner == wishes_.of(request).owner;
  if (found == promises_.end()) {
    if (is_own && hint.action == HintAction::kPrefetch) return promise(owner, request.keys, hint);
    ++counts_.without_effect;
    return;
  }
  count(hint.action);
  if (hint.action == HintAction::kRetain || hint.action == HintAction::kPrefetch) {
    Promise& kept = found->second;
    const TimePoint until = std::max(kept.until, now() + hint.time_to_live);
    ends_.erase({kept.until, found->first});
    ends_.emplace(until, found->first);
    kept.until = until;
    return;
  }
  const GroupKeys keys = found->second.keys;
  end(found);
  if (hint.action != HintAction::kDemote) return;
  for_each_group(keys, [&](SlabClassId of, const auto& its) { tier_.leave_early(of, its); });
}

void PromiseBook::on_finished(const Request& request) {
  const Wish wish = std::move(wishes_.of(request));
  wishes_.drop(request);
  if (!wish.at_end) return;
  if (wish.at_end->action == HintAction::kRetain) {
    promise(wish.owner, request.keys, *wish.at_end);
    return;
  }
  end_of(wish.owner);
  count(HintAction::kDemote);
  for_each_group(request.keys,
                 [&](SlabClassId of, const auto& keys) { tier_.leave_early(of, keys); });
}

void PromiseBook::promise(std::string_view owner, const GroupKeys& keys, const ClientHint& hint) {
  const std::size_t num_keys = num_keys_in(keys);
  // A prompt without a whole block. Nothing limits how many such promises there would be.
  if (num_keys == 0) {
    end_of(owner);
    ++counts_.without_effect;
    return;
  }
  if (!make_room(num_keys, owner)) {
    ++counts_.refused;
    return;
  }
  // The new promise comes first, so that keys of both are promised all the time.
  for_each_group(keys, [&](SlabClassId of, const auto& its) { tier_.promise(of, its); });
  end_of(owner);
  const TimePoint until = now() + hint.time_to_live;
  promises_.emplace(owner, Promise{keys, num_keys, until});
  ends_.emplace(until, owner);
  num_keys_ += num_keys;
  count(hint.action);
}

bool PromiseBook::make_room(std::size_t num_keys, std::string_view for_owner) {
  if (num_keys > max_keys_) return false;
  const auto own = promises_.find(for_owner);
  const std::size_t num_own = own == promises_.end() ? 0 : own->second.num_keys;
  auto next = ends_.begin();
  while (num_keys_ - num_own + num_keys > max_keys_) {
    if (next->second == for_owner) {
      ++next;
      continue;
    }
    const auto promise = promises_.find(next->second);
    ++next;
    end(promise);
    ++counts_.refused;
  }
  return true;
}

void PromiseBook::end_of(std::string_view owner) {
  if (const auto found = promises_.find(owner); found != promises_.end()) end(found);
}

void PromiseBook::end(Promises::iterator promise) {
  for_each_group(promise->second.keys,
                 [&](SlabClassId of, const auto& keys) { tier_.end(of, keys); });
  num_keys_ -= promise->second.num_keys;
  ends_.erase({promise->second.until, promise->first});
  promises_.erase(promise);
}

void PromiseBook::expire() {
  if (ends_.empty()) return;
  const TimePoint time = now();
  while (!ends_.empty() && ends_.begin()->first <= time) {
    end(promises_.find(ends_.begin()->second));
    ++counts_.expired;
  }
}

void PromiseBook::clear() {
  while (!promises_.empty()) end(promises_.begin());
}

template <class Each>
void PromiseBook::for_each_group(const GroupKeys& keys, const Each& each) const {
  for (const GroupId group : groups_.ids()) {
    const auto& of_group = keys[group.value()];
    if (!of_group.empty()) each(groups_.class_of(group), of_group);
  }
}

}  // namespace kvferry::connector
