// SPDX-License-Identifier: Apache-2.0
#include "request_table.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace kvferry::connector {
namespace {

/// Hashes that are read at a time: few enough for the L1 cache.
constexpr std::size_t kHashesAtATime = 64;

}  // namespace

std::optional<std::uint32_t> Request::sync_keys(const BlockGroups& groups, WeightsId weights) {
  const auto available = static_cast<std::uint32_t>(hashes->size());
  bool drops = false;
  std::uint32_t left = 0;
  for (const GroupId group : groups.ids()) {
    std::vector<cpu_tier::BlockKey>& of_group = keys[group.value()];
    const std::size_t known = num_known_keys(groups, group, available, weights);
    drops |= known < of_group.size();
    of_group.resize(known);
    left = std::max(left, static_cast<std::uint32_t>(known) * groups.block_length(group));
  }
  // The other groups copy what this one has read: the engine's hashes are spread over its whole
  // heap.
  add_keys(groups, groups.finest(), available, weights);
  for (const GroupId group : groups.ids()) add_keys(groups, group, available, weights);
  num_hashes = available;
  return drops ? std::optional(left) : std::nullopt;
}

std::size_t Request::num_known_keys(const BlockGroups& groups, GroupId group,
                                    std::uint32_t available, WeightsId weights) const {
  const std::span<const cpu_tier::BlockKey> of_group = keys_of(group);
  const auto same = [&](std::size_t block) {
    const std::size_t position = (block + 1) * groups.block_length(group) - 1;
    return of_group[block] == cpu_tier::BlockKey::make(hashes->hash(position), group, weights);
  };
  std::size_t known = std::min<std::size_t>(of_group.size(), groups.num_complete(group, available));
  while (known > 0 && !same(known - 1)) --known;
  return known;
}

void Request::add_keys(const BlockGroups& groups, GroupId group, std::uint32_t available,
                       WeightsId weights) {
  std::vector<cpu_tier::BlockKey>& of_group = keys[group.value()];
  const std::size_t complete = groups.num_complete(group, available);
  if (complete > of_group.capacity()) {
    // As many keys as a prompt has; while the request decodes, keys come one at a time.
    of_group.reserve(std::max(complete, of_group.size() + of_group.size() / 8));
  }
  const std::size_t length = groups.block_length(group);
  const std::size_t finest_length = groups.block_length(groups.finest());
  const std::size_t known = of_group.size();
  if (group == groups.finest() || length % finest_length != 0) {
    std::array<std::span<const std::byte>, kHashesAtATime> batch;
    for (std::size_t block = known; block < complete; block += batch.size()) {
      const std::span read = std::span(batch).first(std::min(batch.size(), complete - block));
      hashes->read((block + 1) * length - 1, length, read);
      for (const std::span<const std::byte> hash : read) {
        of_group.emplace_back().set(hash, group, weights);
      }
    }
    return;
  }
  const std::span<const cpu_tier::BlockKey> finest = keys_of(groups.finest());
  if (length == finest_length) {
    of_group.insert(of_group.end(), finest.begin() + static_cast<std::ptrdiff_t>(known),
                    finest.begin() + static_cast<std::ptrdiff_t>(complete));
  }
  for (std::size_t block = of_group.size(); block < complete; ++block) {
    of_group.push_back(finest[(block + 1) * length / finest_length - 1]);
  }
  for (std::size_t block = known; block < complete; ++block) {
    of_group[block].group = static_cast<std::uint16_t>(group.value());
  }
}

Request& RequestTable::arrive(std::string_view engine_id,
                              std::shared_ptr<const BlockHashes> hashes) {
  if (const auto old = newest_.find(engine_id); old != newest_.end()) erase(*old->second);
  auto request = std::make_unique<Request>();
  request->id = last_id_ = last_id_.next();
  request->generation = next_generation();
  request->place = take_place();
  request->engine_id = engine_id;
  request->hashes = std::move(hashes);
  request->keys.resize(num_groups_);
  request->tables.resize(num_groups_);
  Request& made = *request;
  by_id_.emplace(made.id, std::move(request));
  newest_.emplace(made.engine_id, &made);
  return made;
}

Request* RequestTable::find(std::string_view engine_id) {
  const auto found = newest_.find(engine_id);
  if (found == newest_.end() || found->second->state == RequestState::kAbortedLoading)
    return nullptr;
  return found->second;
}

void RequestTable::preempt(Request& request) {
  request.generation = next_generation();
  for (auto& table : request.tables) table.clear();
}

TransferId RequestTable::finish(std::string_view engine_id) {
  Request* request = find(engine_id);
  if (request == nullptr) return TransferId();
  if (request->state == RequestState::kLoading) {
    request->state = RequestState::kAbortedLoading;
    request->hashes.reset();
    ++num_tombstones_;
    return request->load;
  }
  erase(*request);
  return TransferId();
}

void RequestTable::begin_load(Request& request, TransferId load) {
  KVFERRY_CHECK(request.state == RequestState::kIdle,
                "request " + request.engine_id + " starts a load while one is under way");
  request.state = RequestState::kLoading;
  request.load = load;
}

LoadEnd RequestTable::meaning_of_end(const Owner& owner, TransferId load) const {
  const auto found = by_id_.find(owner.request);
  if (owner.domain != domain_ || found == by_id_.end()) return LoadEnd::kStale;
  const Request& request = *found->second;
  if (request.generation != owner.generation || request.load != load) return LoadEnd::kStale;
  switch (request.state) {
    case RequestState::kLoading:
      return LoadEnd::kWaitedFor;
    case RequestState::kAbortedLoading:
      return LoadEnd::kAborted;
    case RequestState::kIdle:
      break;
  }
  return LoadEnd::kStale;
}

LoadEnd RequestTable::end_load(const Owner& owner, TransferId load) {
  const LoadEnd end = meaning_of_end(owner, load);
  if (end == LoadEnd::kStale) return end;
  Request& request = *by_id_.at(owner.request);
  if (end == LoadEnd::kAborted) {
    erase(request);
    return end;
  }
  request.state = RequestState::kIdle;
  request.load = TransferId();
  request.generation = next_generation();
  return end;
}

std::vector<const Request*> RequestTable::oldest(std::size_t most) const {
  std::vector<const Request*> all;
  all.reserve(by_id_.size());
  for (const auto& [id, request] : by_id_) all.push_back(request.get());
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(std::min(most, all.size()));
  std::partial_sort(all.begin(), middle, all.end(),
                    [](const Request* a, const Request* b) { return a->id < b->id; });
  all.erase(middle, all.end());
  return all;
}

std::uint32_t RequestTable::take_place() {
  if (free_places_.empty()) {
    free_places_.reserve(std::bit_ceil(num_places_ + 1));  // Then erase() allocates nothing.
    return num_places_++;
  }
  const std::uint32_t place = free_places_.back();
  free_places_.pop_back();
  return place;
}

void RequestTable::erase(Request& request) {
  if (request.state == RequestState::kAbortedLoading) --num_tombstones_;
  newest_.erase(request.engine_id);
  free_places_.push_back(request.place);
  by_id_.erase(request.id);
}

}  // namespace kvferry::connector
