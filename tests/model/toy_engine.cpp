// SPDX-License-Identifier: Apache-2.0
#include "toy_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

namespace kvferry::connector {
namespace {

constexpr std::uint32_t kMaxPrompt = 22;
constexpr std::uint32_t kMaxOutput = 10;
/// One request of the longest kind fits, with a block for the token that asynchronous scheduling
/// runs ahead.
constexpr std::uint32_t kLeastBlocks = (kMaxPrompt + kMaxOutput) / kBlockTokens + 2;

std::uint32_t whole_blocks(std::uint32_t num_tokens) {
  return (num_tokens + kBlockTokens - 1) / kBlockTokens;
}

gpu::HostLinkOptions random_link(std::mt19937_64& random) {
  gpu::HostLinkOptions link;
  link.seed = random();
  if (random() % 4 == 0) return link;
  link.latency = std::chrono::microseconds(random() % 30);
  link.jitter = std::chrono::microseconds(random() % 60);
  if (random() % 2 == 0) link.order = gpu::LinkOrder::kShuffled;
  if (random() % 2 == 0) link.fail_probability = 0.03;
  return link;
}

}  // namespace

void ToyTotals::add(const ToyTotals& other) {
  steps += other.steps;
  loaded_blocks += other.loaded_blocks;
  failed_loads += other.failed_loads;
  aborted_loads += other.aborted_loads;
  orphaned_loads += other.orphaned_loads;
  preemptions += other.preemptions;
  resets += other.resets;
  early_blocks += other.early_blocks;
  stored += other.stored;
  skipped_ring += other.skipped_ring;
  skipped_exhausted += other.skipped_exhausted;
  skipped_reallocated += other.skipped_reallocated;
  failed_stores += other.failed_stores;
  evicted += other.evicted;
}

ToyEngine::ToyEngine(std::uint64_t seed)
    : random_(seed),
      num_blocks_(kLeastBlocks + below(12)),
      lag_(below(2)),
      chunk_(5 + below(20)),
      recompute_failed_(!one_in(3)),
      pool_(num_blocks_),
      oracle_(0) {
  SchedulerOptions options;
  options.domain = DomainId(static_cast<std::uint32_t>(seed));
  options.world_size = 2;
  options.block_tokens = kBlockTokens;
  options.num_blocks = num_blocks_;
  options.slot_bytes = {ToyRank::kSlotBytes, ToyRank::kSlotBytes};
  options.max_slots = 100;
  std::uint32_t least_slots = 100;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ToyRankOptions of_rank;
    of_rank.rank = rank;
    of_rank.num_blocks = num_blocks_;
    of_rank.num_slots = 6 + below(one_in(3) ? 12 : 90);
    of_rank.ring_blocks = 1 + below(12);
    of_rank.link = random_link(random_);
    ranks_.push_back(std::make_unique<ToyRank>(of_rank));
    least_slots = std::min(least_slots, of_rank.num_slots);
  }
  oracle_ = PlanOracle(least_slots);
  scheduler_ = std::make_unique<SchedulerEngine>(std::move(options));
  scheduler_->set_pool(&pool_);
}

// ---- events ----

void ToyEngine::arrive() {
  std::string id = "r" + std::to_string(below(12));
  if (ToyRequest* old = find(id)) {
    if (old->state != ToyState::kZombie) return;
    // vllm#51637: the id comes again while the load of its aborted owner runs. The engine forgets
    // the old one but for its blocks.
    orphans_[old->uid] = std::move(old->table);
    ++totals_.orphaned_loads;
    forget(*old);
  }
  std::vector<std::uint32_t> prompt(one_in(2) ? kMaxPrompt : 1 + below(kMaxPrompt));
  const std::uint32_t family = below(5);
  for (std::uint32_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<std::uint32_t>(mix(family, i) % 50);
  }
  if (one_in(2)) prompt.back() = 100 + below(4);
  requests_.emplace_back(std::move(id), ++last_uid_, std::move(prompt), 1 + below(kMaxOutput));
  waiting_.push_back(&requests_.back());
  scheduler_->on_request(requests_.back().id, requests_.back().hashes);
}

void ToyEngine::abort(ToyRequest& request) {
  const int num_calls = one_in(3) ? 3 : 1;  // dynamo#6681
  for (int i = 0; i < num_calls; ++i) scheduler_->on_finished(request.id);
  if (request.state == ToyState::kLoading) {
    request.state = ToyState::kZombie;
    ++totals_.aborted_loads;
  } else if (request.state != ToyState::kZombie) {
    finish(request);
  }
}

void ToyEngine::reset() {
  ++totals_.resets;
  ++epoch_;
  if (one_in(2)) {
    while (!running_.empty()) preempt(*running_.back());
  }
  pool_.uncache_all();
  scheduler_->reset_cache();
}

// ---- scheduling ----

std::vector<std::uint32_t> ToyEngine::allocate(std::uint32_t count) {
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t i = 0; i < count; ++i) {
    blocks.push_back(pool_.allocate());
    for (auto& rank : ranks_) rank->clear(blocks.back());
  }
  return blocks;
}

void ToyEngine::cache_blocks(ToyRequest& request, std::uint32_t num_tokens) {
  // What was computed on KV of other weights is not what its hash says.
  const std::vector<std::uint64_t> pure = request.pure_kv(num_tokens, epoch_);
  for (std::uint32_t block = 0; (block + 1) * kBlockTokens <= num_tokens; ++block) {
    const std::uint32_t last = (block + 1) * kBlockTokens - 1;
    if (request.kv.at(last) != pure[last]) return;
    pool_.cache(request.table.at(block), request.block_hash(block));
  }
}

void ToyEngine::preempt(ToyRequest& request) {
  ++totals_.preemptions;
  pool_.release(request.table);
  std::erase(running_, &request);
  request.restart();
  waiting_.push_front(&request);
  preempted_.insert(request.id);
}

void ToyEngine::compute(ToyRequest& request, std::uint32_t count, bool whole_table,
                        std::vector<std::uint32_t> new_blocks, std::vector<Scheduled>& scheduled) {
  Scheduled work;
  work.request = &request;
  work.uid = request.uid;
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
    const auto has = static_cast<std::uint32_t>(request.table.size());
    const std::uint32_t needs = whole_blocks(request.num_computed + count);
    const std::uint32_t missing = needs > has ? needs - has : 0;
    // The last to come is the first to go; those behind `i` are not scheduled yet.
    while (pool_.num_free() < missing && running_.size() > i) preempt(*running_.back());
    if (running_.size() <= i) return;
    std::vector<std::uint32_t> new_blocks = allocate(missing);
    request.table.insert(request.table.end(), new_blocks.begin(), new_blocks.end());
    budget -= count;
    compute(request, count, false, std::move(new_blocks), scheduled);
  }
}

std::vector<std::uint32_t> ToyEngine::local_prefix(ToyRequest& request) {
  std::vector<std::uint32_t> blocks;
  while (blocks.size() < (request.num_known - 1) / kBlockTokens) {
    const auto block = pool_.find(request.block_hash(static_cast<std::uint32_t>(blocks.size())));
    if (!block) break;
    blocks.push_back(*block);
  }
  return blocks;
}

bool ToyEngine::begin_load(ToyRequest& request, const std::vector<std::uint32_t>& local,
                           std::uint32_t count) {
  const auto first = static_cast<std::uint32_t>(local.size());
  for (const std::uint32_t block : local) pool_.touch(block);
  request.table = local;
  const std::vector<std::uint32_t> fresh = allocate(count);
  request.table.insert(request.table.end(), fresh.begin(), fresh.end());
  request.load_first = first;
  request.load_end = first + count;
  request.load_epoch = epoch_;
  request.state = ToyState::kLoading;
  loading_uids_[request.id] = request.uid;
  scheduler_->on_allocated(request.id, blocks_of(request.table), count * kBlockTokens);
  return true;
}

bool ToyEngine::admit(ToyRequest& request, std::vector<Scheduled>& scheduled,
                      std::uint32_t& budget) {
  std::vector<std::uint32_t> local;
  if (request.state == ToyState::kWaiting) {
    // The tally goes by id: the engine does not start a second load under one while the first runs.
    if (oracle_.loading(request.id)) return false;
    local = local_prefix(request);
    const auto num_local = static_cast<std::uint32_t>(local.size()) * kBlockTokens;
    const std::uint32_t hit = scheduler_->lookup(request.id, num_local, request.num_known);
    EXPECT_EQ(hit % kBlockTokens, 0U);
    EXPECT_LT(num_local + hit, request.num_known);
    if (one_in(4)) {
      EXPECT_EQ(scheduler_->lookup(request.id, num_local, request.num_known), hit);
    }
    // The engine may cap the answer or not use it at all.
    std::uint32_t count = hit / kBlockTokens;
    if (count > 1 && one_in(8)) --count;
    if (one_in(8)) count = 0;
    const auto num_idle_local = static_cast<std::uint32_t>(std::count_if(
        local.begin(), local.end(), [this](auto block) { return pool_.is_free(block); }));
    if (pool_.num_free() < num_idle_local + std::max(count, 1U)) return false;
    if (count > 0) return begin_load(request, local, count);
  }
  const std::uint32_t first = request.state == ToyState::kReady
                                  ? request.num_computed
                                  : static_cast<std::uint32_t>(local.size()) * kBlockTokens;
  const std::uint32_t count = std::min(budget, request.num_known - first);
  const auto has = static_cast<std::uint32_t>(
      request.state == ToyState::kReady ? request.table.size() : local.size());
  const std::uint32_t needs = whole_blocks(first + count);
  const std::uint32_t missing = needs > has ? needs - has : 0;
  const auto num_idle_local = static_cast<std::uint32_t>(std::count_if(
      local.begin(), local.end(), [this](auto block) { return pool_.is_free(block); }));
  if (pool_.num_free() < num_idle_local + missing) return false;
  if (request.state == ToyState::kWaiting) {
    for (const std::uint32_t block : local) pool_.touch(block);
    request.table = local;
    request.kv = request.pure_kv(first, epoch_);
    request.num_computed = first;
  }
  const std::vector<std::uint32_t> fresh = allocate(missing);
  request.table.insert(request.table.end(), fresh.begin(), fresh.end());
  request.state = ToyState::kRunning;
  running_.push_back(&request);
  budget -= count;
  compute(request, count, true, request.table, scheduled);
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

StepPlan ToyEngine::build(const std::vector<Scheduled>& scheduled, std::string& bytes) {
  for (const std::string& id : preempted_) scheduler_->on_preempted(id);
  preempted_.clear();
  std::set<std::uint32_t> written;
  for (const Scheduled& work : scheduled) {
    const ToyRequest& request = *work.request;
    scheduler_->on_scheduled(request.id,
                             work.whole_table ? TableUpdate::kReplace : TableUpdate::kAppend,
                             blocks_of(work.new_blocks), work.first, work.count);
    for (std::uint32_t at = work.first; at < work.first + work.count; ++at) {
      written.insert(request.table.at(at / kBlockTokens));
    }
  }
  bytes = scheduler_->finish_plan();
  StepPlan plan = decode_plan(std::as_bytes(std::span(bytes)));
  oracle_.take_plan(plan, pool_, written, loading_uids_);
  for (const Scheduled& work : scheduled) work.request->num_computed += work.count;
  return plan;
}

// ---- the ranks ----

ToyEngine::RankOutput ToyEngine::execute(std::uint32_t rank_number,
                                         const std::vector<Scheduled>& scheduled,
                                         const std::string& plan) {
  ToyRank& rank = *ranks_[rank_number];
  rank.engine().bind(std::as_bytes(std::span(plan)), 0);
  for (const Scheduled& work : scheduled) {
    const ToyRequest& request = *work.request;
    rank.engine().pump(0);
    for (std::uint32_t at = 0; at < work.first; ++at) {
      const std::uint32_t block = request.table[at / kBlockTokens];
      EXPECT_TRUE(rank.holds(block, at % kBlockTokens, request.kv.at(at)))
          << "rank " << rank_number << " reads token " << at << " of " << request.id << " in block "
          << block;
    }
    for (std::uint32_t at = work.first; at < work.first + work.count; ++at) {
      rank.write(request.table[at / kBlockTokens], at % kBlockTokens, request.kv.at(at));
    }
  }
  if (!one_in(12)) rank.engine().save(0);  // Model runners may leave the step early.
  RankOutput output;
  if (!one_in(10)) {
    output.loads = rank.engine().collect();
    output.report = rank.engine().take_report();
  }
  return output;
}

}  // namespace kvferry::connector
