// SPDX-License-Identifier: Apache-2.0
#include "toy_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

/// What a step computes, and where.
namespace kvferry::connector {
namespace {

std::uint32_t whole_blocks(std::uint32_t num_tokens) {
  return (num_tokens + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace

std::uint32_t ToyEngine::first_needed(std::size_t group, std::uint32_t length) const {
  return groups_[group].reach.first_seen(length * kBlockTokens) / kBlockTokens;
}

std::uint32_t ToyEngine::allocate() {
  const std::uint32_t block = pool_.allocate();
  for (auto& rank : ranks_) rank->clear(block);
  return block;
}

std::uint32_t ToyEngine::num_missing(const std::vector<ToyTable>& tables,
                                     std::uint32_t length) const {
  std::uint32_t sum = 0;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const auto has = static_cast<std::uint32_t>(tables.empty() ? 0 : tables[group].size());
    sum += length > has ? length - has : 0;
  }
  return sum;
}

std::vector<ToyTable> ToyEngine::extend(std::vector<ToyTable>& tables, std::uint32_t length) {
  std::vector<ToyTable> added(groups_.size());
  tables.resize(groups_.size());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    while (tables[group].size() < length) {
      added[group].push_back(allocate());
      tables[group].push_back(added[group].back());
    }
  }
  return added;
}

void ToyEngine::release(const std::vector<ToyTable>& tables) {
  // Tails first, so that they are evicted first.
  for (std::size_t group = 0; group < tables.size(); ++group) {
    for (auto block = tables[group].rbegin(); block != tables[group].rend(); ++block) {
      if (!is_window(group) || *block != kToyNull) pool_.release(*block);
    }
  }
}

void ToyEngine::slide(ToyRequest& request) {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    ToyTable& table = request.tables[group];
    const std::uint32_t first_seen =
        groups_[group].reach.first_seen(request.num_computed) / kBlockTokens;
    for (auto at = std::min<std::size_t>(first_seen, table.size()); at > 0; --at) {
      if (table[at - 1] == kToyNull) continue;
      pool_.release(std::exchange(table[at - 1], kToyNull));
      ++totals_.slid_blocks;
    }
  }
}

void ToyEngine::cache_blocks(ToyRequest& request, std::uint32_t num_tokens) {
  // What was computed on KV of other weights is not what its hash says.
  const std::vector<std::uint64_t> pure = request.pure_kv(num_tokens, epoch_);
  for (std::uint32_t block = 0; (block + 1) * kBlockTokens <= num_tokens; ++block) {
    const std::uint32_t last = (block + 1) * kBlockTokens - 1;
    if (request.kv.at(last) != pure[last]) return;
    for (std::uint32_t group = 0; group < groups_.size(); ++group) {
      const std::uint32_t id = request.tables[group].at(block);
      if (is_window(group) && id == kToyNull) continue;
      pool_.cache(id, {request.block_hash(block), group});
    }
  }
}

void ToyEngine::preempt(ToyRequest& request) {
  ++totals_.preemptions;
  release(request.tables);
  std::erase(running_, &request);
  request.restart();
  waiting_.push_front(&request);
  preempted_.insert(request.id);
}

void ToyEngine::compute(ToyRequest& request, std::uint32_t count, bool whole_table,
                        std::vector<ToyTable> new_blocks, std::vector<Scheduled>& scheduled) {
  Scheduled work;
  work.request = &request;
  work.uid = request.uid;
  work.num_restarts = request.num_restarts;
  work.first = request.num_computed;
  work.count = count;
  work.whole_table = whole_table;
  work.new_blocks = std::move(new_blocks);
  const std::uint32_t end = request.num_computed + count;
  request.kv.resize(request.num_computed);
  while (request.kv.size() < end) request.kv.push_back(request.next_kv(request.kv, epoch_));
  cache_blocks(request, std::min(end, request.num_known));
  work.samples = end >= request.num_known + request.num_placeholders;
  if (work.samples) ++request.num_placeholders;
  scheduled.push_back(std::move(work));
}

void ToyEngine::schedule_running(std::vector<Scheduled>& scheduled, std::uint32_t& budget) {
  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    ToyRequest& request = *running_[i];
    const std::uint32_t want = request.num_known + request.num_placeholders - request.num_computed;
    const std::uint32_t count = std::min(want, budget);
    if (count == 0) continue;
    slide(request);
    const std::uint32_t needs = whole_blocks(request.num_computed + count);
    // The last to come is the first to go; those behind `i` are not scheduled yet.
    while (running_.size() > i && pool_.num_free() < num_missing(request.tables, needs)) {
      preempt(*running_.back());
    }
    if (running_.size() <= i) return;
    budget -= count;
    compute(request, count, false, extend(request.tables, needs), scheduled);
  }
}

ToyEngine::Local ToyEngine::local_prefix(ToyRequest& request) {
  Local local;
  const auto cached = [&](std::size_t group, std::uint32_t at) {
    return pool_.find({request.block_hash(at), static_cast<std::uint32_t>(group)});
  };
  std::uint32_t& length = local.num_blocks;
  while (length < (request.num_known - 1) / kBlockTokens && cached(0, length)) ++length;
  const auto serves = [&](std::size_t group) {
    for (std::uint32_t at = first_needed(group, length); at < length; ++at) {
      if (!cached(group, at)) return false;
    }
    return true;
  };
  for (std::size_t group = 1; group < groups_.size(); ++group) {
    if (serves(group)) continue;
    --length;
    group = 0;  // All of them again.
  }
  local.tables.resize(groups_.size());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (std::uint32_t at = 0; at < length; ++at) {
      local.tables[group].push_back(at < first_needed(group, length) ? kToyNull
                                                                     : *cached(group, at));
    }
  }
  return local;
}

std::uint32_t ToyEngine::num_idle(const std::vector<ToyTable>& tables) const {
  std::uint32_t sum = 0;
  for (const ToyTable& table : tables) {
    sum += static_cast<std::uint32_t>(std::count_if(
        table.begin(), table.end(), [this](std::uint32_t block) { return pool_.is_free(block); }));
  }
  return sum;
}

void ToyEngine::take_local(ToyRequest& request, const Local& local, std::uint32_t length) {
  request.tables = local.tables;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (std::uint32_t at = 0; at < local.num_blocks; ++at) {
      std::uint32_t& block = request.tables[group][at];
      if (at < first_needed(group, length)) block = kToyNull;
      if (!is_window(group) || block != kToyNull) pool_.touch(block);
    }
  }
}

std::optional<std::uint32_t> ToyEngine::choose_load(ToyRequest& request, const Local& local) {
  const std::uint32_t num_local = local.num_blocks * kBlockTokens;
  const auto answer = scheduler_->lookup(request.id, num_local, request.num_known);
  if (!answer) {
    ++totals_.load_waits;
    return std::nullopt;
  }
  const std::uint32_t hit = *answer;
  EXPECT_EQ(hit % kBlockTokens, 0U);
  EXPECT_LE(num_local + hit, request.num_known);
  EXPECT_LE(hit, request.limits.max_load);
  totals_.limited_loads += request.limits.max_load != RequestLimits::kNone ? 1 : 0;
  if (one_in(4)) {
    EXPECT_EQ(scheduler_->lookup(request.id, num_local, request.num_known), hit);
  }
  // The engine may cap the answer or not use it at all.
  request.load_may_fail = false;
  std::uint32_t count = hit / kBlockTokens;
  if (count > 1 && one_in(8)) {
    --count;
    request.load_may_fail = groups_.size() > 1;  // The window ends elsewhere.
  }
  if (one_in(8)) count = 0;
  const std::uint32_t length = local.num_blocks + count;
  std::uint32_t num_fresh = 0;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    num_fresh += length - std::max(local.num_blocks, first_needed(group, length));
  }
  if (pool_.num_free() < num_idle(local.tables) + std::max(num_fresh, 1U)) return std::nullopt;
  return count;
}

void ToyEngine::begin_load(ToyRequest& request, const Local& local, std::uint32_t count,
                           bool reset_first) {
  request.load_first = local.num_blocks;
  request.load_end = local.num_blocks + count;
  request.load_epoch = epoch_;
  request.load_failed = request.load_ended_well = false;
  request.state = ToyState::kLoading;
  take_local(request, local, request.load_end);
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (std::uint32_t at = request.load_first; at < request.load_end; ++at) {
      const bool is_null = at < first_needed(group, request.load_end);
      request.tables[group].push_back(is_null ? kToyNull : allocate());
      if (is_null) ++totals_.null_blocks;
    }
  }
  if (reset_first) {
    // What the lookup said does not hold any more: the load fails.
    ++epoch_;
    pool_.uncache_all();
    scheduler_->reset_cache();
    ++totals_.refused_loads;
  }
  std::vector<std::vector<BlockId>> blocks;
  for (const ToyTable& table : request.tables) blocks.push_back(blocks_of(table));
  const std::vector<std::span<const BlockId>> spans(blocks.begin(), blocks.end());
  scheduler_->on_allocated(request.id, spans, count * kBlockTokens);
  begun_.push_back(request.uid);
}

bool ToyEngine::admit(ToyRequest& request, std::vector<Scheduled>& scheduled,
                      std::uint32_t& budget) {
  if (request.state == ToyState::kWaiting) {
    const Local local = local_prefix(request);
    const std::optional<std::uint32_t> count = choose_load(request, local);
    if (!count) return false;
    if (*count > 0) {
      begin_load(request, local, *count, scheduled.empty() && one_in(25));
      return true;
    }
    const std::uint32_t first = local.num_blocks * kBlockTokens;
    const std::uint32_t needs = whole_blocks(first + std::min(budget, request.num_known - first));
    if (pool_.num_free() < num_idle(local.tables) + num_missing(local.tables, needs)) return false;
    take_local(request, local, local.num_blocks);
    request.num_computed = first;
    request.kv = request.pure_kv(first, epoch_);
  }
  slide(request);
  const std::uint32_t count = std::min(budget, request.num_known - request.num_computed);
  const std::uint32_t needs = whole_blocks(request.num_computed + count);
  if (pool_.num_free() < num_missing(request.tables, needs)) return false;
  static_cast<void>(extend(request.tables, needs));
  request.state = ToyState::kRunning;
  running_.push_back(&request);
  budget -= count;
  compute(request, count, true, request.tables, scheduled);
  return true;
}

void ToyEngine::schedule_waiting(std::vector<Scheduled>& scheduled, std::uint32_t& budget) {
  while (!waiting_.empty() && budget > 0) {
    ToyRequest& request = *waiting_.front();
    if (request.state == ToyState::kReady && request.num_computed > 0) {
      // Loaded blocks are seen by others from the scheduling pass behind their report on.
      cache_blocks(request, request.num_computed);
    }
    if (!admit(request, scheduled, budget)) break;
    waiting_.pop_front();
  }
}

}  // namespace kvferry::connector
