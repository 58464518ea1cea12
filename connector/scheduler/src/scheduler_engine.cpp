// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/scheduler/scheduler_engine.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"

#include "scheduler_impl.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace kvferry::connector {
namespace {

void validate_classes(const SchedulerOptions& options) {
  if (options.classes.empty()) throw ConfigError("classes is empty; expected one size of slots");
  for (std::size_t i = 0; i < options.classes.size(); ++i) {
    const SlabClass& of = options.classes[i];
    if (of.slot_bytes.size() != options.world_size) {
      throw ConfigError("slot_bytes has " + std::to_string(of.slot_bytes.size()) +
                        " entries; expected one per rank, " + std::to_string(options.world_size));
    }
    if (of.slots_per_chunk == 0) {
      throw ConfigError("slots_per_chunk of slab class " + std::to_string(i) +
                        " is 0; expected one slot at least");
    }
    if (i > 0 && of.slot_bytes.front() > options.classes[i - 1].slot_bytes.front()) {
      throw ConfigError("the slots of class " + std::to_string(i) +
                        " are larger than those of the class before; expected the largest first");
    }
  }
  for (const KvGroup& group : options.groups) {
    group.reach.check_block(options.block_tokens);
    if (group.slab_class.value() < options.classes.size()) continue;
    throw ConfigError("a KV cache group is of slab class " +
                      std::to_string(group.slab_class.value()) + "; there are " +
                      std::to_string(options.classes.size()));
  }
}

void validate(const SchedulerOptions& options) {
  if (options.world_size == 0) throw ConfigError("world_size is 0; expected at least one rank");
  if (options.block_tokens == 0) throw ConfigError("block_tokens is 0; expected the block size");
  if (options.num_blocks == 0)
    throw ConfigError("num_blocks is 0; expected the engine's pool size");
  if (options.max_chunks == 0) {
    throw ConfigError("the CPU tier has room for 0 blocks; raise cpu_bytes_to_use");
  }
  if (!options.replicas.empty() && options.replicas.size() != options.world_size) {
    throw ConfigError("replicas has " + std::to_string(options.replicas.size()) +
                      " entries; expected one per rank, " + std::to_string(options.world_size));
  }
  if (options.groups.empty()) throw ConfigError("groups is empty; expected one KV cache group");
  validate_classes(options);
}

}  // namespace

std::optional<std::uint32_t> SchedulerEngine::Impl::lookup(std::string_view engine_id,
                                                           std::uint32_t num_local_tokens,
                                                           std::uint32_t num_tokens) {
  Request* request = requests_.find(engine_id);
  if (request == nullptr || request->state != RequestState::kIdle || num_tokens == 0) return 0;
  note_local(engine_id, num_local_tokens);
  if (loads_.announces(request->engine_id)) return 0;
  sync_keys(*request);
  tiers_.hold_still();
  const std::uint32_t num_local = num_local_tokens / options_.block_tokens;
  // The last token is computed in any case: the engine needs its logits.
  const std::uint32_t limit = std::min(static_cast<std::uint32_t>(request->num_keys()),
                                       (num_tokens - 1) / options_.block_tokens);
  if (options_.shared_tier != nullptr && num_chunks_ == 0) {
    return limit > num_local && may_wait_for_ranks() ? std::nullopt : std::optional(0U);
  }
  const LookupAnswer& answer = lookups_.find(*request, num_local, limit);
  if (sharing_.must_wait(*request, answer)) return std::nullopt;
  return answer.num_blocks * options_.block_tokens;
}

bool SchedulerEngine::Impl::may_wait_for_ranks() {
  const auto now = options_.clock ? options_.clock() : std::chrono::steady_clock::now();
  if (!first_asked_) first_asked_ = now;
  return now - *first_asked_ < options_.max_load_wait;
}

void SchedulerEngine::Impl::on_allocated(std::string_view engine_id, GroupBlocks tables,
                                         std::uint32_t num_external_tokens) {
  Request* request = requests_.find(engine_id);
  if (request == nullptr || request->state != RequestState::kIdle) {
    throw ProtocolError(
        "the engine allocated a load for request " + std::string(engine_id) +
        (request == nullptr ? ", which it never announced" : " while another one is under way"));
  }
  const std::uint32_t count =
      (num_external_tokens + options_.block_tokens - 1) / options_.block_tokens;
  Lookups::Taken taken = lookups_.take(*request, count, tables);
  lookups_.end_await(*request);
  // The whole prefix is offered once it runs, what is loaded too: the tier learns from it what is
  // used, touches what it holds, and gets again what it has lost.
  planner_.offer_again(*request, 0);
  // From here on, so that a reset sees that it has blocks from before.
  for (std::size_t group = 0; group < request->tables.size() && group < tables.size(); ++group) {
    request->tables[group].assign(tables[group].begin(), tables[group].end());
  }
  // A reset came between lookup and allocation: the local blocks may be from before it.
  if (!taken.was_valid) planner_.hold_back(*request);
  prover_.begin_load(*request, taken.first_block, count);
  const bool has_lease = taken.leased.has_value();
  loads_.begin(*request, transfers_.next(), std::move(taken.leased));
  if (!has_lease) return;
  hit_tokens_ += num_external_tokens;
  sharing_.on_begun(*request, taken.first_block, count);
}

std::vector<StepReport> SchedulerEngine::Impl::readable(
    std::span<const std::span<const std::byte>> encoded) const {
  std::vector<StepReport> reports;
  reports.reserve(encoded.size());
  for (const std::span<const std::byte> bytes : encoded) reports.push_back(decode_report(bytes));
  const auto is_foreign = [this](const StepReport& report) {
    return report.domain != options_.domain;
  };
  std::erase_if(reports, is_foreign);
  // What one report says of its rank depends on what those before it said.
  std::optional<RankRegister> trial;
  for (const StepReport& report : reports) {
    if (!trial && (report.topology || report.num_ready_chunks)) trial.emplace(ranks_);
    trial ? trial->take(report) : ranks_.expect_rank(report.rank);
    stores_.expect_fits(report);
    expect_known_plan(report);
  }
  return reports;
}

FoldResult SchedulerEngine::Impl::fold(std::span<const std::span<const std::byte>> encoded) {
  const std::vector<StepReport> reports = readable(encoded);
  stale_reports_ += encoded.size() - reports.size();
  patience_.on_output();
  load_patience_.on_output();
  for (const StepReport& report : reports) {
    ranks_.take(report);
    patience_.hear(report.rank, report.executed, report.oldest_under_way);
    const auto count = [this](bool known) { stale_reports_ += known ? 0 : 1; };
    for (const StoreGathered& gathered : report.gathered) {
      count(stores_.mark_gathered(report.rank, gathered));
    }
    for (const TransferEnded& ended : report.stores) count(stores_.mark_ended(report.rank, ended));
    for (const TransferEnded& ended : report.loads) count(loads_.mark_ended(report.rank, ended));
    for (const TransferId transfer : report.announced) {
      count(loads_.mark_announced(report.rank, transfer));
    }
  }
  if (ranks_.all_ready()) grow_tier();
  FoldResult result;
  loads_.settle_failures();
  stores_.settle();
  loads_.settle_ends(result);
  for (const std::string& engine_id : loads_.take_succeeded()) {
    if (const Request* request = requests_.find(engine_id)) prover_.end_load(*request);
  }
  if (const std::vector<TransferId> heard = stores_.take_witnesses(); !heard.empty()) {
    prover_.hear(heard);
    planner_.offer_newly_proven();
  }
  return result;
}

void SchedulerEngine::Impl::expect_known_plan(const StepReport& report) const {
  if (report.executed <= last_seq_) return;
  throw ProtocolError("rank " + std::to_string(report.rank.value()) +
                      " says that it executed plan " + std::to_string(report.executed.value()) +
                      "; the last one made is " + std::to_string(last_seq_.value()) +
                      "; scheduler and workers must run the same kvferry version");
}

void SchedulerEngine::Impl::on_request(std::string_view engine_id,
                                       std::shared_ptr<const BlockHashes> hashes) {
  on_finished(engine_id);  // An id in use: nothing of its earlier life may go on.
  Request& request = requests_.arrive(engine_id, std::move(hashes));
  sync_keys(request);
  await_turn(request);
}

void SchedulerEngine::Impl::sync_keys(Request& request) {
  const std::optional<std::size_t> num_left = request.sync_keys();
  if (!num_left) return;
  lookups_.on_keys_dropped(request, *num_left);
  prover_.on_keys_dropped(request, *num_left);
  planner_.on_keys_dropped(request, *num_left);
}

void SchedulerEngine::Impl::grow_tier() {
  const std::uint32_t num_chunks = std::min(ranks_.least_chunks(), options_.max_chunks);
  if (num_chunks == num_chunks_) return;
  if (num_chunks_ == 0) {
    stores_.set_ring_blocks(ranks_.least_ring_blocks());
    if (stores_.is_off()) backlog_.clear();
    tiers_.narrow_name_space(ranks_.joint_probe());
    // What was found as they arrived, by another name space or beyond what is ready.
    lookups_.forget_answers();
  }
  tiers_.grow_to(num_chunks);
  num_chunks_ = num_chunks;
}

void SchedulerEngine::Impl::on_finished(std::string_view engine_id, std::uint32_t num_tokens) {
  if (Request* request = requests_.find(engine_id)) {
    prover_.note_known(*request, num_tokens);
    offer_rest(*request);
    lookups_.end_await(*request);
    lookups_.drop(*request);
    sharing_.end_turn(*request);
    planner_.drop(*request);
    prover_.drop(*request);
  }
  const TransferId load = requests_.finish(engine_id);
  if (load != TransferId()) loads_.cancel(load);
}

void SchedulerEngine::Impl::reset_cache() {
  for (const TransferId transfer : stores_.abort_all()) loads_.cancel_store(transfer);
  loads_.doom_all();
  tiers_.forget_all();
  planner_.forget_all(requests_);
  prover_.forget_all(pool_);
  lookups_.forget_answers();
}

void SchedulerEngine::Impl::on_blocks_invalid(std::span<const BlockId> blocks) {
  if (blocks.empty()) return;
  const std::unordered_set<BlockId> invalid(blocks.begin(), blocks.end());
  std::vector<BlockId> lost(blocks.begin(), blocks.end());
  requests_.for_each([&](Request& request) {
    const std::optional<std::uint32_t> first = prover_.find_first(request, invalid);
    if (!first) return;
    // What it computed after them it computed from them.
    const std::vector<BlockId> its = prover_.take_back(request, *first);
    lost.insert(lost.end(), its.begin(), its.end());
    planner_.offer_again(request, *first);
    // With asynchronous scheduling vLLM takes the next step's token for that of the step that
    // failed, and the ranks do not: they disagree about what comes after the tokens known now.
    if (request.state != RequestState::kIdle) return;
    sync_keys(request);
    prover_.distrust_new_keys(request);
  });
  for (const BlockId block : lost) prover_.forget(block);
  planner_.forget(lost);
  for (const TransferId transfer : stores_.abort_stores_of(lost)) loads_.cancel_store(transfer);
}

SchedulerSnapshot SchedulerEngine::Impl::snapshot() const {
  SchedulerSnapshot view;
  view.tier = tiers_.snapshot();
  view.slabs = tiers_.slab_snapshot();
  view.wasted_bytes = wasted_bytes(view.slabs);
  view.num_requests = requests_.num_living();
  view.num_tombstones = requests_.num_tombstones();
  view.num_stores_in_flight = stores_.num_in_flight();
  view.num_loads_in_flight = loads_.num_in_flight();
  view.num_backlog = backlog_.size();
  view.ready_ranks = ranks_.num_ready();
  view.hit_tokens = hit_tokens_;
  view.stored = stores_.num_stored();
  view.loaded = loads_.num_loaded();
  view.load_waits = sharing_.num_waits();
  view.skipped_ring = stores_.num_skipped();
  const StorePlanner::Skipped skipped = planner_.skipped();
  view.skipped_exhausted = skipped.exhausted;
  view.skipped_declined = skipped.declined;
  view.skipped_reallocated = skipped.reallocated;
  view.failed_stores = stores_.num_failed();
  view.failed_loads = loads_.num_failed();
  view.expired_loads = loads_.num_expired();
  view.stale_reports = stale_reports_ + loads_.num_stale();
  return view;
}

std::uint64_t SchedulerEngine::Impl::wasted_bytes(const cpu_tier::SlabSnapshot& slabs) const {
  std::vector<std::uint32_t> slots_per_chunk;
  std::vector<std::uint64_t> slot_bytes;
  for (const SlabClass& of : options_.classes) {
    slots_per_chunk.push_back(of.slots_per_chunk);
    slot_bytes.push_back(of.slot_bytes.front());
  }
  const std::uint64_t chunk_bytes = cpu_tier::chunk_bytes(slots_per_chunk, slot_bytes);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < slabs.classes.size(); ++i) {
    sum += slabs.classes[i].num_chunks * (chunk_bytes - slots_per_chunk[i] * slot_bytes[i]);
  }
  return sum;
}

void SchedulerEngine::Impl::dcheck_consistent() const {
#ifndef NDEBUG
  const cpu_tier::TierSnapshot tier = tiers_.snapshot();
  const StoreBook::Held held = stores_.held();
  const std::size_t num_leases = loads_.num_leases();
  KVFERRY_CHECK(tier.conserved(), "the tier's slots do not add up");
  KVFERRY_CHECK(tier.num_writable == held.num_writable && tier.num_aborted == held.num_aborted &&
                    tier.num_quarantined == held.num_quarantined + tier.num_set_aside,
                "stores hold " + std::to_string(held.num_writable) + " writable, " +
                    std::to_string(held.num_aborted) + " aborted and " +
                    std::to_string(held.num_quarantined) + " quarantined slots, the tier counts " +
                    std::to_string(tier.num_writable) + ", " + std::to_string(tier.num_aborted) +
                    " and " + std::to_string(tier.num_quarantined));
  const std::uint32_t num_leased = tier.num_leased + tier.num_dying + tier.num_leased_guests;
  KVFERRY_CHECK(num_leases >= num_leased && (num_leases == 0) == (num_leased == 0),
                "loads hold " + std::to_string(num_leases) + " leases, the tier counts " +
                    std::to_string(tier.num_leased) + " leased, " + std::to_string(tier.num_dying) +
                    " dying and " + std::to_string(tier.num_leased_guests) + " foreign slots");
  KVFERRY_CHECK(requests_.num_tombstones() <= loads_.num_in_flight(),
                "a tombstone without a load under way");
#endif
}

SchedulerEngine::SchedulerEngine(SchedulerOptions options) {
  validate(options);
  impl_ = std::make_unique<Impl>(std::move(options));
}
SchedulerEngine::~SchedulerEngine() = default;

void SchedulerEngine::set_pool(const BlockPool* pool) { impl_->set_pool(pool); }

void SchedulerEngine::on_request(std::string_view engine_id,
                                 std::shared_ptr<const BlockHashes> hashes) {
  impl_->on_request(engine_id, std::move(hashes));
}

bool SchedulerEngine::knows(std::string_view engine_id) const {
  return impl_->requests().find(engine_id) != nullptr;
}

std::optional<std::uint32_t> SchedulerEngine::lookup(std::string_view engine_id,
                                                     std::uint32_t num_local_tokens,
                                                     std::uint32_t num_tokens) {
  return impl_->lookup(engine_id, num_local_tokens, num_tokens);
}

void SchedulerEngine::on_allocated(std::string_view engine_id,
                                   std::span<const std::span<const BlockId>> tables,
                                   std::uint32_t num_external_tokens) {
  impl_->on_allocated(engine_id, tables, num_external_tokens);
  impl_->dcheck_consistent();
}

void SchedulerEngine::note_local(std::string_view engine_id, std::uint32_t num_local_tokens) {
  impl_->note_local(engine_id, num_local_tokens);
}

void SchedulerEngine::on_blocks_invalid(std::span<const BlockId> blocks) {
  impl_->on_blocks_invalid(blocks);
  impl_->dcheck_consistent();
}

void SchedulerEngine::on_preempted(std::string_view engine_id) { impl_->on_preempted(engine_id); }

void SchedulerEngine::on_scheduled(std::string_view engine_id, TableUpdate update,
                                   std::span<const std::span<const BlockId>> blocks,
                                   const StepTokens& tokens) {
  impl_->on_scheduled(engine_id, update, blocks, tokens);
}

void SchedulerEngine::on_state(std::string_view engine_id, GroupId group, BlockId block,
                               std::uint32_t num_tokens) {
  impl_->on_state(engine_id, group, block, num_tokens);
}

std::string SchedulerEngine::finish_plan() {
  std::string plan = impl_->finish_plan();
  impl_->dcheck_consistent();
  return plan;
}

FoldResult SchedulerEngine::fold(std::span<const std::span<const std::byte>> reports) {
  FoldResult result = impl_->fold(reports);
  impl_->dcheck_consistent();
  return result;
}

void SchedulerEngine::on_finished(std::string_view engine_id, std::uint32_t num_tokens) {
  impl_->on_finished(engine_id, num_tokens);
  impl_->dcheck_consistent();
}

void SchedulerEngine::reset_cache() {
  impl_->reset_cache();
  impl_->dcheck_consistent();
}

std::vector<cpu_tier::KeyEvent> SchedulerEngine::take_key_events() {
  return impl_->take_key_events();
}

SchedulerSnapshot SchedulerEngine::snapshot() const { return impl_->snapshot(); }
std::uint32_t SchedulerEngine::num_slots() const { return impl_->num_slots(); }
bool SchedulerEngine::is_busy() const { return impl_->is_busy(); }

}  // namespace kvferry::connector
