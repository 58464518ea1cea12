// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/scheduler_engine.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/connector/step_report.hpp"

#include "scheduler_impl.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {
namespace {

void validate(const SchedulerOptions& options) {
  if (options.world_size == 0) throw ConfigError("world_size is 0; expected at least one rank");
  if (options.block_tokens == 0) throw ConfigError("block_tokens is 0; expected the block size");
  if (options.num_blocks == 0)
    throw ConfigError("num_blocks is 0; expected the engine's pool size");
  if (options.max_slots == 0) {
    throw ConfigError("the CPU tier has room for 0 blocks; raise cpu_bytes_to_use");
  }
  if (options.slot_bytes.size() != options.world_size) {
    throw ConfigError("slot_bytes has " + std::to_string(options.slot_bytes.size()) +
                      " entries; expected one per rank, " + std::to_string(options.world_size));
  }
}

}  // namespace

std::uint32_t SchedulerEngine::Impl::lookup(std::string_view engine_id,
                                            std::uint32_t num_local_tokens,
                                            std::uint32_t num_tokens) {
  Request* request = owners_.find(engine_id);
  if (request == nullptr || request->state != RequestState::kIdle || num_tokens == 0) return 0;
  request->sync_keys();
  const std::uint32_t num_local = num_local_tokens / options_.block_tokens;
  // The last token is computed in any case: the engine needs its logits.
  const std::uint32_t limit = std::min(static_cast<std::uint32_t>(request->keys.size()),
                                       (num_tokens - 1) / options_.block_tokens);
  LookupAnswer& answer = request->answer;
  if (!answer.valid || answer.hit.eviction_epoch != tier_.eviction_epoch() ||
      answer.num_local_blocks != num_local || answer.num_limit_blocks != limit) {
    const std::uint32_t first = std::min(num_local, limit);
    const std::span<const cpu_tier::BlockKey> keys =
        std::span(request->keys).subspan(first, limit - first);
    // A request that waits for blocks asks in every step: most of its last answer still holds.
    const bool same_start = answer.valid && answer.num_local_blocks == num_local;
    cpu_tier::PrefixHit known = same_start ? std::move(answer.hit) : cpu_tier::PrefixHit{};
    answer = {true, num_local, limit, tier_.lookup_prefix(keys, std::move(known))};
  }
  return static_cast<std::uint32_t>(answer.hit.size()) * options_.block_tokens;
}

void SchedulerEngine::Impl::on_allocated(std::string_view engine_id, std::span<const BlockId> table,
                                         std::uint32_t num_external_tokens) {
  Request* request = owners_.find(engine_id);
  if (request == nullptr) {
    throw ProtocolError("the engine allocated a load for request " + std::string(engine_id) +
                        ", which it never announced");
  }
  const std::uint32_t first = request->answer.num_local_blocks;
  const std::uint32_t count =
      (num_external_tokens + options_.block_tokens - 1) / options_.block_tokens;
  LoadOrder order{
      next_transfer(), request->owner(options_.domain), request->engine_id, true, GroupId(0), {}};
  cpu_tier::Lease lease;
  if (request->answer.valid && count <= request->answer.hit.size() &&
      first + count <= table.size()) {
    auto leased = tier_.lease(request->answer.hit, count);
    if (leased.ok()) {
      lease = std::move(leased).value();
      order.doomed = false;
      order.blocks.reserve(count);
      for (std::uint32_t i = 0; i < count; ++i) {
        order.blocks.push_back({table[first + i], lease.slots()[i]});
      }
      hit_tokens_ += num_external_tokens;
    }
  }
  // What is loaded is in the tier. Behind a local hit the whole prefix is gone through once it
  // runs, so that its head is touched too, and offered where the tier has lost it.
  request->num_offered = order.doomed || first > 0 ? 0 : count;
  // From here on, so that a reset sees that it has blocks from before.
  request->table.assign(table.begin(), table.end());
  request->answer = {};
  loads_.begin(*request, std::move(order), std::move(lease));
}

void SchedulerEngine::Impl::on_scheduled(std::string_view engine_id, TableUpdate update,
                                         std::span<const BlockId> blocks,
                                         std::uint32_t num_computed_tokens,
                                         std::uint32_t num_scheduled_tokens) {
  Request* request = owners_.find(engine_id);
  const std::uint32_t first_written = num_computed_tokens / options_.block_tokens;
  if (request == nullptr) {
    // It is not followed, but it writes them all the same, in this step or a later one.
    const std::size_t kept = update == TableUpdate::kReplace ? first_written : 0;
    for (std::size_t i = kept; i < blocks.size(); ++i) drop_rewritten(blocks[i]);
    return;
  }
  if (update == TableUpdate::kReplace) {
    request->table.clear();
    // All of it is computed anew: nothing is left from before a reset.
    if (num_computed_tokens == 0) request->storable = true;
  }
  request->table.insert(request->table.end(), blocks.begin(), blocks.end());
  // Most steps of a decoding request complete no block; its hashes need not be looked at then.
  const std::uint32_t complete =
      (num_computed_tokens + num_scheduled_tokens) / options_.block_tokens;
  if (complete == first_written && request->num_offered == complete) return;
  request->sync_keys();
  // What is computed again (a failed load, a roll-back) is offered again.
  request->num_offered = std::min(request->num_offered, first_written);
  const std::uint32_t end = std::min({complete, static_cast<std::uint32_t>(request->keys.size()),
                                      static_cast<std::uint32_t>(request->table.size())});
  // This step writes these blocks, maybe under a key that the backlog knows them by: what was read
  // at the bind would be the old content.
  for (std::uint32_t i = first_written; i < end; ++i) drop_rewritten(request->table[i]);
  if (!request->storable || request->num_offered >= end) return;
  candidates_.push_back({request, request->num_offered, end});
  request->num_offered = end;
}

void SchedulerEngine::Impl::offer_rest(Request& request) {
  if (!request.storable || request.state != RequestState::kIdle || stores_off()) return;
  request.sync_keys();
  const std::size_t end = std::min(request.keys.size(), request.table.size());
  for (std::size_t i = request.num_offered; i < end; ++i) {
    backlog_.push(request.table[i], request.keys[i]);
  }
}

void SchedulerEngine::Impl::on_preempted(std::string_view engine_id) {
  Request* request = owners_.find(engine_id);
  // A request that already loads again was preempted before that load, by a reset of the engine's
  // cache.
  if (request == nullptr || request->state != RequestState::kIdle) return;
  offer_rest(*request);
  owners_.preempt(*request);
}

std::vector<std::string> SchedulerEngine::Impl::fold(
    std::span<const std::span<const std::byte>> encoded) {
  std::vector<StepReport> reports;
  reports.reserve(encoded.size());
  for (const std::span<const std::byte> bytes : encoded) {
    reports.push_back(decode_report(bytes));
    if (reports.back().domain != options_.domain) {
      reports.pop_back();
      ++stale_reports_;
      continue;
    }
    ranks_.take(reports.back());
  }
  for (const StepReport& report : reports) {
    const auto count = [this](bool known) { stale_reports_ += known ? 0 : 1; };
    for (const StoreGathered& gathered : report.gathered) {
      count(stores_.mark_gathered(report.rank, gathered));
    }
    for (const TransferEnded& ended : report.stores) count(stores_.mark_ended(report.rank, ended));
    for (const TransferEnded& ended : report.loads) count(loads_.mark_ended(report.rank, ended));
  }
  if (ranks_.all_ready() && tier_.snapshot().num_slots == 0) {
    tier_.grow_to(std::min(ranks_.least_slots(), options_.max_slots));
    stores_.set_ring_blocks(ranks_.least_ring_blocks());
    if (stores_off()) backlog_.clear();
  }
  std::vector<std::string> stale;
  loads_.settle_failures();
  stores_.settle();
  loads_.settle_ends(stale);
  return stale;
}

void SchedulerEngine::Impl::on_finished(std::string_view engine_id) {
  if (Request* request = owners_.find(engine_id)) offer_rest(*request);
  const TransferId load = owners_.finish(engine_id);
  if (load != TransferId()) loads_.cancel(load);
}

void SchedulerEngine::Impl::reset_cache() {
  for (const TransferId transfer : stores_.abort_all()) loads_.cancel_store(transfer);
  loads_.doom_all();
  tier_.forget_all();
  backlog_.clear();
  owners_.for_each([](Request& request) {
    request.answer.valid = false;
    // What it has in the pool was computed before the reset and must not come back.
    if (!request.table.empty()) request.storable = false;
  });
}

SchedulerSnapshot SchedulerEngine::Impl::snapshot() const {
  SchedulerSnapshot view;
  view.tier = tier_.snapshot();
  view.num_requests = owners_.num_living();
  view.num_tombstones = owners_.num_tombstones();
  view.num_stores_in_flight = stores_.num_in_flight();
  view.num_loads_in_flight = loads_.num_in_flight();
  view.num_backlog = backlog_.size();
  view.ready_ranks = ranks_.num_ready();
  view.hit_tokens = hit_tokens_;
  view.stored = stores_.num_stored();
  view.loaded = loads_.num_loaded();
  view.skipped_ring = stores_.num_skipped();
  view.skipped_exhausted = skipped_exhausted_;
  view.skipped_reallocated = skipped_reallocated_;
  view.failed_stores = stores_.num_failed();
  view.failed_loads = loads_.num_failed();
  view.stale_reports = stale_reports_ + loads_.num_stale();
  return view;
}

SchedulerEngine::SchedulerEngine(SchedulerOptions options) {
  validate(options);
  impl_ = std::make_unique<Impl>(std::move(options));
}
SchedulerEngine::~SchedulerEngine() = default;

void SchedulerEngine::set_pool(const BlockPool* pool) { impl_->set_pool(pool); }

void SchedulerEngine::on_request(std::string_view engine_id,
                                 std::shared_ptr<const BlockHashes> hashes) {
  impl_->on_finished(engine_id);  // An id in use: nothing of its earlier life may go on.
  impl_->owners().arrive(engine_id, std::move(hashes));
}

bool SchedulerEngine::knows(std::string_view engine_id) const {
  return impl_->owners().find(engine_id) != nullptr;
}

std::uint32_t SchedulerEngine::lookup(std::string_view engine_id, std::uint32_t num_local_tokens,
                                      std::uint32_t num_tokens) {
  return impl_->lookup(engine_id, num_local_tokens, num_tokens);
}

void SchedulerEngine::on_allocated(std::string_view engine_id, std::span<const BlockId> table,
                                   std::uint32_t num_external_tokens) {
  impl_->on_allocated(engine_id, table, num_external_tokens);
}

void SchedulerEngine::on_preempted(std::string_view engine_id) { impl_->on_preempted(engine_id); }

void SchedulerEngine::on_scheduled(std::string_view engine_id, TableUpdate update,
                                   std::span<const BlockId> blocks,
                                   std::uint32_t num_computed_tokens,
                                   std::uint32_t num_scheduled_tokens) {
  impl_->on_scheduled(engine_id, update, blocks, num_computed_tokens, num_scheduled_tokens);
}

std::string SchedulerEngine::finish_plan() { return impl_->finish_plan(); }

std::vector<std::string> SchedulerEngine::fold(
    std::span<const std::span<const std::byte>> reports) {
  return impl_->fold(reports);
}

void SchedulerEngine::on_finished(std::string_view engine_id) { impl_->on_finished(engine_id); }
void SchedulerEngine::reset_cache() { impl_->reset_cache(); }
SchedulerSnapshot SchedulerEngine::snapshot() const { return impl_->snapshot(); }

}  // namespace kvferry::connector
