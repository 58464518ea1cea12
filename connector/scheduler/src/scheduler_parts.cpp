// SPDX-License-Identifier: Apache-2.0
#include "scheduler_parts.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/recorder/recorded_error.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvferry::connector {

namespace {

/// As many keys as the tier can have blocks.
std::size_t max_promised_keys(const SchedulerOptions& options) {
  if (options.tier.max_promised_share == 0) return 0;
  std::size_t most = 0;
  for (const SlabClass& of : options.classes)
    most = std::max<std::size_t>(most, of.slots_per_chunk);
  return most * options.max_chunks;
}

/// What is recorded is all that the scheduler side sees: its clock, and what the tier notes.
SchedulerOptions with_journal(SchedulerOptions options, CallJournal& calls) {
  if (!calls.is_on()) return options;
  options.clock = [&calls] { return calls.now(); };
  options.tier.key_moves = true;
  return options;
}

}  // namespace

SchedulerEngine::Parts::Parts(SchedulerOptions given)
    : calls(given.recorder, given.clock, given.groups.size()),
      decisions(given.recorder),
      options(with_journal(std::move(given), calls)),
      peer_answers(options.recorder),
      tier(make_tier(options, &peer_answers)),
      groups(options.groups, options.hash_tokens),
      backlog(options.num_blocks),
      requests(options.domain, options.groups.size()),
      prover(requests, groups, options.num_blocks, options.later_turns, options.other_loads),
      lookups(*tier, groups),
      ranks(options),
      patience(options.rank_timeout, options.clock, options.world_size),
      load_patience(options.load_timeout, options.clock),
      stores(*tier, backlog, options.world_size),
      planner(options.domain, options.retention, *tier, groups, prover, backlog, stores, transfers),
      loads(*tier, requests, options.world_size),
      sharing(loads, groups, options.max_load_wait, options.clock),
      promises(*tier, groups, options.clock, max_promised_keys(options)),
      resizer(*tier, options.world_size) {
  if (decisions.is_on()) {
    planner.set_journal(&decisions);
    stores.set_journal(&decisions);
    loads.set_journal(&decisions);
  }
  take_weights(options.weights);
  if (options.shared_tier != nullptr) {
    keeper.emplace([this] { tend(); }, *options.shared_tier, options.keeper_thread);
  }
}

void SchedulerEngine::Parts::take_weights(WeightsId now) {
  weights = now;
  if (pool != nullptr) pool->set_weights(now);
}

void SchedulerEngine::Parts::sync_keys(Request& request) {
  const std::uint32_t before = request.num_hashes;
  const std::optional<std::uint32_t> left = request.sync_keys(groups, weights);
  if (calls.is_on() && (left || request.num_hashes != before)) {
    calls.hashes(request, groups, weights, left ? 0 : before);
  }
  if (!left) return;
  lookups.on_keys_dropped(request, *left);
  prover.on_keys_dropped(request, *left);
  planner.on_keys_dropped(request, *left);
}

void SchedulerEngine::Parts::finish(std::string_view engine_id, std::uint32_t num_tokens) {
  if (Request* request = requests.find(engine_id)) {
    prover.note_known(*request, num_tokens);
    offer_rest(*request);
    if (promises.waits_for(*request)) {
      sync_keys(*request);
      promises.on_finished(*request);
    }
    lookups.end_await(*request);
    lookups.drop(*request);
    sharing.end_turn(*request);
    loaded.on_reached(*request);
    planner.drop(*request);
    prover.drop(*request);
  }
  const TransferId load = requests.finish(engine_id);
  if (load != TransferId()) loads.cancel(load);
  dcheck_consistent();
}

std::optional<std::uint32_t> SchedulerEngine::Parts::look_up(Request& request,
                                                             std::uint32_t num_local_tokens,
                                                             std::uint32_t num_tokens) {
  sync_keys(request);
  tier->hold_still();
  const std::uint32_t hash_tokens = options.hash_tokens;
  const std::uint32_t first = num_local_tokens / hash_tokens;
  const std::uint32_t whole = std::min(request.num_hashes, groups.num_loadable(num_tokens));
  const std::uint32_t limit =
      whole > first ? first + std::min(whole - first, request.load_limit) : whole;
  if (options.shares_tier() && num_first_chunks == 0) {
    const auto early = limit > first && may_wait_for_ranks() ? std::nullopt : std::optional(0U);
    LookupAnswer none;
    none.first = none.end = none.full_end = first;
    decisions.found(request, none, early, nullptr);
    return early;
  }
  const LookupAnswer& answer = lookups.find(request, first, limit);
  // The limit of one request is not the end of a prefix that requests share.
  const bool is_cut = limit < whole && answer.full_end == groups.align(limit);
  planner.note_junction(request, is_cut ? 0 : answer.junction());
  if (sharing.must_wait(request, answer)) {
    decisions.found(request, answer, std::nullopt, sharing.awaited_by(request));
    decisions.missing(request, groups, answer, weights);
    return std::nullopt;
  }
  const std::uint32_t found = (answer.end - answer.first) * hash_tokens;
  decisions.found(request, answer, found, nullptr);
  decisions.missing(request, groups, answer, weights);
  return found;
}

void SchedulerEngine::Parts::offer_rest(Request& request) {
  if (request.state != RequestState::kIdle || !planner.is_storable(request)) return;
  sync_keys(request);
  planner.offer_rest(request);
}

void SchedulerEngine::Parts::expect_in_pool(std::span<const BlockId> blocks) const {
  const auto largest = std::max_element(blocks.begin(), blocks.end());
  if (largest == blocks.end() || largest->value() < options.num_blocks) return;
  throw ProtocolError("the engine names block " + std::to_string(largest->value()) +
                      " of a pool of " + std::to_string(options.num_blocks) + " blocks");
}

void SchedulerEngine::Parts::drop_added(TableUpdate update, GroupBlocks blocks,
                                        std::uint32_t num_computed) {
  for (GroupId group; group.value() < blocks.size(); group = group.next()) {
    const std::span<const BlockId> added = blocks[group.value()];
    const std::size_t kept =
        update == TableUpdate::kReplace ? num_computed / groups.block_tokens(group) : 0;
    for (std::size_t i = kept; i < added.size(); ++i) {
      planner.drop_rewritten(added[i]);
      prover.begin_write(group, added[i], Generation());
    }
  }
}

void SchedulerEngine::Parts::tend() {
  in_turn([this] {
    // On the keeper's thread, only this call records.
    recorder::Recorder* const before = recorder::witness();
    calls.tended();
    tier->tend(now());
    decisions.moved(*tier);
    recorder::set_witness(before);
  });
}

bool SchedulerEngine::Parts::may_wait_for_ranks() {
  const auto now = this->now();
  if (!first_asked) first_asked = now;
  return now - *first_asked < options.max_load_wait;
}

void SchedulerEngine::Parts::grow_tier() {
  if (num_first_chunks == 0) {
    resizer.begin({std::min(ranks.least_first_chunks(), options.max_chunks),
                   std::min(ranks.least_max_chunks(), options.max_chunks),
                   options.shares_tier() ? 0 : ranks.chunks_per_run()});
  }
  if (ranks.have_grown()) resizer.have_grown();
  const std::uint32_t now_ready = std::min(ranks.least_chunks(), resizer.first_chunks());
  if (now_ready == num_first_chunks) return;
  if (num_first_chunks == 0) {
    stores.set_ring(ranks.ring_room());
    if (stores.is_off()) backlog.clear();
    tier->narrow_name_space(ranks.joint_probe());
    // Earlier answers are of another name space, or of fewer ready slots.
    lookups.forget_answers();
  }
  tier->grow_to(now_ready);
  resizer.set_ready(num_first_chunks = now_ready);
}

std::vector<StepReport> SchedulerEngine::Parts::readable(
    std::span<const std::span<const std::byte>> encoded) const {
  std::vector<StepReport> reports;
  reports.reserve(encoded.size());
  for (const std::span<const std::byte> bytes : encoded) reports.push_back(decode_report(bytes));
  const auto is_foreign = [this](const StepReport& report) {
    return report.domain != options.domain;
  };
  std::erase_if(reports, is_foreign);
  // Whether a report is possible depends on the reports of its rank before it.
  std::optional<RankRegister> trial;
  for (const StepReport& report : reports) {
    if (!trial && (report.topology || report.num_ready_chunks)) trial.emplace(ranks);
    trial ? trial->take(report) : ranks.expect_rank(report.rank);
    stores.expect_fits(report);
    loads.expect_fits(report);
    expect_known_plan(report);
  }
  return reports;
}

void SchedulerEngine::Parts::mark(const StepReport& report) {
  ranks.take(report);
  patience.hear(report.rank, report.executed, report.oldest_under_way);
  const auto count = [this](bool known) { stale_reports += known ? 0 : 1; };
  for (const StoreGathered& one : report.gathered) count(stores.mark_gathered(report.rank, one));
  for (const TransferEnded& one : report.stores) count(stores.mark_ended(report.rank, one));
  for (const TransferEnded& one : report.loads) count(loads.mark_ended(report.rank, one));
  for (const ChunkEnded& one : report.chunks) count(resizer.mark(report.rank, one));
  for (const TransferId one : report.announced) count(loads.mark_announced(report.rank, one));
  for (const DamagedSlot& one : report.scrubbed) loads.mark_scrubbed(report.rank, one);
}

void SchedulerEngine::Parts::heed_damage() {
  for (std::string& line : loads.take_damage_lines()) warnings.push_back(std::move(line));
  const std::optional<RankId> distrusted = loads.damage().distrusted();
  if (!distrusted || stores.is_off()) return;
  stores.turn_off();
  backlog.clear();
  warnings.push_back(std::to_string(DamageRecord::kMostInARow) + " loads in a row of rank " +
                     std::to_string(distrusted->value()) +
                     " brought other bytes than were stored. The CPU tier finds and stores "
                     "nothing from now on. Check the memory of that machine and its link to the "
                     "device, and restart the engine");
}

void SchedulerEngine::Parts::expect_known_plan(const StepReport& report) const {
  if (report.executed <= last_seq) return;
  throw ProtocolError("rank " + std::to_string(report.rank.value()) +
                      " says that it executed plan " + std::to_string(report.executed.value()) +
                      "; the last one made is " + std::to_string(last_seq.value()) +
                      "; scheduler and workers must run the same kvferry version");
}

void SchedulerEngine::Parts::expect_ranks() {
  if (!first_plan) return;
  if (!ranks.all_ready()) {
    const auto age = patience.overdue(*first_plan);
    if (!age) return;
    end_step();
    throw TimeoutError(ranks.describe_missing() + ", " + std::to_string(age->count()) +
                       " s of steps after the first plan (rank_timeout): look for that worker's own"
                       " error; every process of the engine must start with the same"
                       " configuration");
  }
  std::optional<Overdue> late;
  stores.add_overdue(patience, late);
  loads.add_overdue(patience, late);
  if (!late) return;
  end_step();
  std::string names;
  for (const RankId rank : late->silent) {
    stores.quarantine(rank);
    names += (names.empty() ? "" : ", ") + std::to_string(rank.value());
  }
  dcheck_consistent();
  throw TimeoutError(
      "rank " + names + " of " + std::to_string(options.world_size) + " has not ended " +
      late->what + " and has not reported on it for " + std::to_string(late->age.count()) +
      " s of steps (rank_timeout), so it is lost. The memory that it may still write is in"
      " quarantine (" +
      std::to_string(tier->snapshot().num_quarantined) +
      " slots). Look for that worker's own error; restart the engine");
}

void SchedulerEngine::Parts::end_step() {
  planner.end_step();
  tier->end_step();
}

std::uint64_t SchedulerEngine::Parts::wasted_bytes(const cpu_tier::SlabSnapshot& slabs) const {
  std::vector<std::uint32_t> slots_per_chunk;
  std::vector<std::uint64_t> slot_bytes;
  for (const SlabClass& of : options.classes) {
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

void SchedulerEngine::Parts::dcheck_consistent() const {
#ifndef NDEBUG
  check_consistent();
#endif
}

void SchedulerEngine::Parts::check_consistent() const {
  const cpu_tier::TierSnapshot now = tier->snapshot();
  const StoreBook::Held held = stores.held();
  const std::size_t num_leases = loads.num_leases();
  KVFERRY_CHECK(now.conserved(), "the tier's slots do not add up");
  KVFERRY_CHECK(now.num_writable == held.num_writable && now.num_aborted == held.num_aborted &&
                    now.num_quarantined == held.num_quarantined + now.num_set_aside,
                "stores hold " + std::to_string(held.num_writable) + " writable, " +
                    std::to_string(held.num_aborted) + " aborted and " +
                    std::to_string(held.num_quarantined) + " quarantined slots, the tier counts " +
                    std::to_string(now.num_writable) + ", " + std::to_string(now.num_aborted) +
                    " and " + std::to_string(now.num_quarantined));
  const std::uint32_t num_leased = now.num_leased + now.num_dying + now.num_leased_guests;
  KVFERRY_CHECK(num_leases >= num_leased && (num_leases == 0) == (num_leased == 0),
                "loads hold " + std::to_string(num_leases) + " leases, the tier counts " +
                    std::to_string(now.num_leased) + " leased, " + std::to_string(now.num_dying) +
                    " dying and " + std::to_string(now.num_leased_guests) + " foreign slots");
  KVFERRY_CHECK(requests.num_tombstones() <= loads.num_in_flight(),
                "a tombstone without a load under way");
}

}  // namespace kvferry::connector
