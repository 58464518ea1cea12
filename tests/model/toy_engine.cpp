// SPDX-License-Identifier: Apache-2.0
#include "toy_engine.hpp"

#include "kvferry/base/error.hpp"

#include "expect_replay.hpp"
#include "test_backend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

namespace kvferry::connector {
namespace {

/// One request of the longest kind fits, with a block for the token that asynchronous scheduling
/// runs ahead.
constexpr std::uint32_t kLeastBlocks = (kMaxPrompt + kMaxOutput) / kBlockTokens + 2;

/// Chunks in a piece of a shared arena: a page of the smallest slots.
constexpr std::uint32_t kSharedPiece = 64;
/// Of them in a tier that is resized.
constexpr std::uint32_t kMostRuns = 4;

/// Whether copies of the seed's engine take many steps.
bool is_slow(std::uint64_t seed) { return seed % 8 == 5; }

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

/// Windows of 1 to 3 blocks, every third one in chunks.
TokenReach random_reach(std::mt19937_64& random) {
  if (random() % 3 != 0) return TokenReach::window(2 + static_cast<std::uint32_t>(random() % 11));
  return TokenReach::chunk(kBlockTokens * (1 + static_cast<std::uint32_t>(random() % 3)));
}

/// One full group; and others of a shorter reach, which may have smaller blocks.
std::vector<KvGroup> random_groups(std::mt19937_64& random, bool with_windows) {
  std::vector<KvGroup> groups{KvGroup{}};
  const std::uint64_t num_windows = with_windows ? 1 + (random() % 3 == 0 ? 1 : 0) : 0;
  for (std::uint64_t i = 0; i < num_windows; ++i) {
    groups.push_back({random_reach(random), SlabClassId(random() % 2)});
  }
  return groups;
}

/// Up to three whole blocks, and half blocks that leave something behind themselves or not.
std::vector<std::uint32_t> random_slots_per_chunk(std::mt19937_64& random,
                                                  const std::vector<KvGroup>& groups) {
  const bool has_small = std::any_of(groups.begin(), groups.end(), [](const KvGroup& group) {
    return group.slab_class != SlabClassId(0);
  });
  if (!has_small) return {1};
  const auto num_large = 1 + static_cast<std::uint32_t>(random() % 3);
  return {num_large, 2 * num_large - static_cast<std::uint32_t>(random() % 2)};
}

/// Every second seed has the default, which adapts; the others begin with what it comes to.
cpu_tier::TierOptions tier_options(std::uint64_t seed) {
  using cpu_tier::Admission;
  using cpu_tier::Eviction;
  switch (seed / 4 % 4) {
    case 1:
      return {Eviction::kLru, Admission::kAlways, 0};
    case 3:
      return {Eviction::kArc, Admission::kSecondOffer, 1};
    default:
      return {};
  }
}

}  // namespace

ToyEngine::ToyEngine(std::uint64_t seed)
    : random_(seed),
      client_random_(seed + 1),
      damage_random_(seed + 2),
      loses_a_rank_(seed % 4 == 3),
      groups_(random_groups(random_, seed % 4 == 2 || (seed % 4 == 3 && one_in(2)))),
      num_blocks_(static_cast<std::uint32_t>(groups_.size()) * (kLeastBlocks + below(12)) + 1),
      lag_(below(2)),
      chunk_(5 + below(20)),
      recompute_failed_(!one_in(3)),
      is_replicated_(one_in(3)),
      // From the seed, so that older seeds draw what they drew.
      is_resized_(seed % 5 == 1),
      damage_(seed % 8 != 4 || is_resized_ ? Damage::kNone
              : seed % 16 == 4             ? Damage::kRare
                                           : Damage::kLasting),
      pool_(num_blocks_),
      oracle_(0, 0, {}) {
  if (groups_.size() > 1) {
    EXPECT_EQ(pool_.allocate(), kToyNull);
  }
  SchedulerOptions options;
  options.domain = DomainId(static_cast<std::uint32_t>(seed));
  options.world_size = 2;
  options.hash_tokens = kBlockTokens;
  options.num_blocks = num_blocks_;
  const std::vector<std::uint32_t> slots_per_chunk = random_slots_per_chunk(random_, groups_);
  std::vector<PlanOracle::ClassUnits> units;
  for (std::size_t i = 0; i < slots_per_chunk.size(); ++i) {
    const std::uint64_t bytes = ToyRank::kSlotBytes.at(i);
    options.classes.push_back({slots_per_chunk[i], {bytes, bytes}});
    units.push_back(
        {slots_per_chunk[i], static_cast<std::uint32_t>(bytes / ToyRank::kSlotBytes.back())});
  }
  options.max_chunks = (is_resized_ ? kMostRuns * kSharedPiece : 100 + kSharedPiece) *
                       static_cast<std::uint32_t>(groups_.size());
  if (is_replicated_) options.replicas = {{2, 0}, {2, 1}};
  options.tier = tier_options(seed);
  options.groups = groups_;
  options.clock = [this] { return now_; };
  // Some engines lose patience with loads that a slow link keeps waiting.
  if (is_slow(seed)) options.load_timeout = std::chrono::milliseconds(1 + below(4));
  make_ranks(slots_per_chunk, seed);
  std::uint32_t least_chunks = options.max_chunks;
  for (const auto& rank : ranks_) {
    least_chunks = std::min(least_chunks, rank->engine().max_slots() / slots_per_chunk.front());
  }
  // The ranks' pieces are alike.
  oracle_ = PlanOracle(is_resized_ ? most_chunks_ : least_chunks, least_chunks, std::move(units));
  recorder_ = recorder_of(options);
  scheduler_ = std::make_unique<SchedulerEngine>(std::move(options));
  scheduler_->set_pool(&pool_);
}

void ToyEngine::make_ranks(const std::vector<std::uint32_t>& slots_per_chunk, std::uint64_t seed) {
  const auto num_groups = static_cast<std::uint32_t>(groups_.size());
  const auto draw_num_chunks = [&] {
    return num_groups * (6 + below(one_in(3) ? 12 : 90)) / slots_per_chunk.front() + 1;
  };
  // A piece for each rank, the second one's short, so that both store.
  const std::uint32_t num_shared_chunks = is_replicated_ ? kSharedPiece + draw_num_chunks() : 0;
  if (is_resized_) most_chunks_ = kSharedPiece * (3 + below(kMostRuns - 2));
  const std::uint32_t num_later_runs = is_resized_ ? below(2) : 0;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ToyRankOptions of_rank;
    of_rank.rank = rank;
    of_rank.num_blocks = num_blocks_;
    of_rank.num_chunks = is_replicated_ ? num_shared_chunks : draw_num_chunks();
    if (is_resized_) {
      of_rank.num_chunks = most_chunks_;
      of_rank.start_chunks = most_chunks_ - num_later_runs * kSharedPiece;
    }
    of_rank.slots_per_chunk = slots_per_chunk;
    of_rank.ring_blocks = 1 + below(12);
    // From the seed, so that older seeds draw what they drew.
    if (seed % 3 == 1) of_rank.load_staging_blocks = 4 + static_cast<std::uint32_t>(seed / 3 % 9);
    if (is_replicated_) {
      of_rank.replicas = {.name = std::to_string(::getpid()) + "/" + std::to_string(seed),
                          .size = 2,
                          .index = rank};
    }
    of_rank.backend = gpu::test_backend();
    of_rank.link = random_link(random_);
    if (is_slow(seed)) of_rank.link.latency = std::chrono::microseconds(below(3000));
    ranks_.push_back(std::make_unique<ToyRank>(of_rank));
  }
  for (const auto& rank : ranks_) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (rank->engine().num_slots() < rank->engine().max_slots() &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    EXPECT_EQ(rank->engine().num_slots(), rank->engine().max_slots());
  }
}

// ---- a step ----

void ToyEngine::step() {
  ++totals_.steps;
  now_ += std::chrono::milliseconds(1);
  events();
  // Otherwise a step takes no time beside a copy, and nothing is ever stored before it is evicted.
  if (one_in(2)) std::this_thread::sleep_for(std::chrono::microseconds(below(400)));

  std::vector<Scheduled> scheduled;
  std::uint32_t budget = one_in(10) ? 0 : chunk_;
  schedule_running(scheduled, budget);
  schedule_waiting(scheduled, budget);
  const std::optional<std::string> plan = build(scheduled);
  if (!plan) return;
  Output output;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    output.ranks.push_back(execute(rank, scheduled, *plan));
  }
  for (const std::uint64_t uid : std::exchange(finished_in_step_, {})) finish(*find(uid));
  if (one_in(250)) {
    reset();
    ++totals_.late_resets;
  }
  output.scheduled = std::move(scheduled);
  outputs_.push_back(std::move(output));
  process_outputs(lag_);
}

std::optional<std::string> ToyEngine::build(const std::vector<Scheduled>& scheduled) {
  for (const std::string& id : preempted_) scheduler_->on_preempted(id);
  preempted_.clear();
  PlanOracle::Step step;
  for (const Scheduled& work : scheduled) {
    const ToyRequest& request = *work.request;
    std::vector<std::vector<BlockId>> blocks;
    for (const ToyTable& of_group : work.new_blocks) blocks.push_back(blocks_of(of_group));
    const std::vector<std::span<const BlockId>> spans(blocks.begin(), blocks.end());
    scheduler_->on_scheduled(request.id,
                             work.whole_table ? TableUpdate::kReplace : TableUpdate::kAppend, spans,
                             work.first, work.count);
    for (const ToyTable& table : request.tables) {
      for (std::uint32_t at = work.first; at < work.first + work.count; ++at) {
        step.written.insert(table.at(at / kBlockTokens));
      }
    }
  }
  finish_in_step(scheduled, step);
  std::string bytes;
  try {
    bytes = scheduler_->finish_plan();
  } catch (const TimeoutError& error) {
    if (!may_time_out_) throw;
    timeout_ = error.what();
    return std::nullopt;
  }
  const StepPlan plan = decode_plan(std::as_bytes(std::span(bytes)));
  totals_.expiries += plan.expiries.size();
  for (const LoadOrder& order : plan.loads) {
    step.load_uids[order.transfer] = uid_of(order);
    totals_.two_class_loads += order.parts.size() > 1 ? 1 : 0;
    std::vector<DamagedSlot>& slots = loaded_slots_[order.transfer];
    for (const ClassBlocks& part : order.parts) {
      for (const BlockSlot& pair : part.blocks) slots.push_back({part.slab_class, pair.slot});
    }
  }
  for (const FailureNotice& notice : plan.notices) {
    const ToyRequest* request = find(notice.engine_request_id);
    const bool waits = request != nullptr && (request->state == ToyState::kLoading ||
                                              request->state == ToyState::kZombie);
    EXPECT_TRUE(waits) << "nobody waits for a load of " << notice.engine_request_id;
    step.notice_uids[notice.transfer] = waits ? request->uid : 0;
  }
  for (const ToyRequest& request : requests_) note_wanted(request);
  check_wanted(plan);
  oracle_.take_plan(plan, pool_, step);
  begun_.clear();
  for (const Scheduled& work : scheduled) work.request->num_computed += work.count;
  return bytes;
}

std::uint64_t ToyEngine::uid_of(const LoadOrder& order) {
  std::set<std::uint32_t> loaded;
  for (const ClassBlocks& part : order.parts) {
    for (const BlockSlot& pair : part.blocks) {
      EXPECT_TRUE(loaded.insert(pair.block.value()).second) << "one block twice in a load";
    }
  }
  for (const ToyRequest& request : requests_) {
    if (request.state != ToyState::kLoading) continue;
    std::set<std::uint32_t> expected;
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      for (std::uint32_t at = request.load_first; at < request.load_end; ++at) {
        const std::uint32_t block = request.tables[group].at(at);
        if (!is_window(group) || block != kToyNull) expected.insert(block);
      }
    }
    if (expected == loaded) return request.uid;
  }
  ADD_FAILURE() << "load " << order.transfer.value() << " fills blocks that nobody waits for";
  return 0;
}

// ---- the ranks ----

void ToyEngine::read_and_write(std::uint32_t rank_number, const Scheduled& work) {
  ToyRank& rank = *ranks_[rank_number];
  const ToyRequest& request = *work.request;
  for (std::uint32_t group = 0; group < groups_.size(); ++group) {
    const ToyTable& table = request.tables[group];
    for (std::uint32_t at = groups_[group].reach.first_seen(work.first); at < work.first; ++at) {
      const std::uint32_t block = table[at / kBlockTokens];
      EXPECT_TRUE(rank.holds(block, at % kBlockTokens, of_group(request.kv.at(at), group),
                             groups_[group].slab_class))
          << "rank " << rank_number << " reads token " << at << " of " << request.id << " in block "
          << block << " of group " << group;
    }
    for (std::uint32_t at = work.first; at < work.first + work.count; ++at) {
      rank.write(table[at / kBlockTokens], at % kBlockTokens, of_group(request.kv.at(at), group),
                 groups_[group].slab_class);
    }
  }
}

ToyEngine::RankOutput ToyEngine::execute(std::uint32_t rank_number,
                                         const std::vector<Scheduled>& scheduled,
                                         const std::string& plan) {
  RankState& state = rank_states_[rank_number];
  if (state.dead) {
    EXPECT_TRUE(scheduled.empty());
    state.missed.push_back(plan);
    return {};
  }
  WorkerEngine& engine = ranks_[rank_number]->engine();
  engine.bind(std::as_bytes(std::span(plan)), 0);
  for (const Scheduled& work : scheduled) {
    engine.pump(0);
    read_and_write(rank_number, work);
  }
  if (!one_in(12)) engine.save(0);  // Model runners may leave the step early.
  if (state.mute) return {};
  if (state.silent_until > totals_.steps) {
    ++totals_.silent_steps;
    return {};
  }
  return one_in(10) ? RankOutput{} : collect(rank_number);
}

ToyEngine::RankOutput ToyEngine::collect(std::uint32_t rank_number) {
  RankOutput output;
  output.announced = ranks_[rank_number]->engine().collect();
  output.report = ranks_[rank_number]->engine().take_report();
  if (damage_ == Damage::kNone || output.report.empty()) return output;
  StepReport report = decode_report(std::as_bytes(std::span(output.report)));
  damage(report);
  output.report = encode(report);
  return output;
}

void ToyEngine::damage(StepReport& report) {
  // The tier goes on with most of its slots, or is soon given up.
  constexpr std::uint64_t kOneIn = 8;
  constexpr std::size_t kMostSlots = 4;
  constexpr std::uint32_t kGoodLoads = 20;
  for (TransferEnded& ended : report.loads) {
    if (ended.outcome != Outcome::kDone) continue;
    ++num_loads_ended_;
    const bool is_now = damage_ == Damage::kRare
                            ? oracle_.num_damaged() < kMostSlots && damage_random_() % kOneIn == 0
                            : num_loads_ended_ > kGoodLoads;
    if (!is_now) continue;
    const std::vector<DamagedSlot>& slots = loaded_slots_.at(ended.transfer);
    ended.outcome = Outcome::kFailed;
    ended.damaged.push_back(slots[damage_random_() % slots.size()]);
    if (slots.front() != ended.damaged.front()) ended.damaged.push_back(slots.front());
    ++totals_.damaged_loads;
  }
}

}  // namespace kvferry::connector
