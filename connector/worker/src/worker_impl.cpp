// SPDX-License-Identifier: Apache-2.0
// What WorkerEngine checks, begins and reports.
#include "worker_impl.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/graveyard.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"

#include "plan_check.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

namespace kvferry::connector {
namespace {

constexpr std::chrono::nanoseconds kNoTime{0};

/// The options with a slot size for each class.
WorkerOptions with_slot_bytes(WorkerOptions options,
                              std::span<const gpu::BlockGeometry> geometries) {
  if (options.slot_bytes.empty()) {
    for (const gpu::BlockGeometry& of : geometries) options.slot_bytes.push_back(of.packed_bytes);
  }
  return options;
}

std::vector<transfer::BlockClass> classes_in(const cpu_tier::Arena& arena,
                                             const WorkerOptions& options,
                                             std::vector<gpu::BlockGeometry> geometries) {
  std::vector<transfer::BlockClass> classes;
  for (std::size_t i = 0; i < geometries.size(); ++i) {
    const cpu_tier::ArenaSlots slots(arena, options.slots_per_chunk[i], options.slot_bytes[i]);
    classes.push_back({std::move(geometries[i]), slots});
  }
  return classes;
}

/// At its end a worker waits for its copies as long as in a step.
transfer::TransferOptions transfer_options(const WorkerOptions& options) {
  transfer::TransferOptions transfer = options.transfer;
  transfer.end_timeout = options.transfer_timeout;
  return transfer;
}

}  // namespace

WorkerEngine::Impl::Impl(std::unique_ptr<gpu::Device> device,
                         std::vector<gpu::BlockGeometry> geometries, const WorkerOptions& options)
    : options_(with_slot_bytes(options, geometries)),
      journal_(options.recorder),
      device_(std::move(device)),
      num_blocks_(geometries.front().num_blocks),
      arena_(make_arena(*device_,
                        cpu_tier::chunk_bytes(options_.slots_per_chunk, options_.slot_bytes),
                        options_)),
      classes_(classes_in(*arena_, options_, std::move(geometries))),
      engine_(std::make_unique<transfer::TransferEngine>(*device_, classes_,
                                                         transfer_options(options_))),
      reported_chunks_(arena_->num_ready()),
      arena_report_(arena_->report()) {
  report_.rank = options_.rank;
  RankTopology& topology = report_.topology.emplace();
  topology.world_size = options_.world_size;
  topology.num_blocks = num_blocks_;
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    topology.classes.push_back({classes_[i].slots.slot_bytes(), options_.slots_per_chunk[i]});
  }
  topology.num_chunks = reported_chunks_;
  topology.max_chunks = arena_->num_chunks();
  topology.first_chunks = arena_->num_first();
  if (arena_->can_resize()) {
    topology.chunks_per_piece = arena_->chunks_per_piece();
    is_retired_.resize(arena_->num_chunks(), false);
    std::fill(is_retired_.begin() + arena_->num_first(), is_retired_.end(), true);
  }
  // In a later pipeline stage the first class need not be the largest.
  const auto largest = std::max_element(options_.slot_bytes.begin(), options_.slot_bytes.end());
  topology.ring_blocks = static_cast<std::uint32_t>(options_.transfer.staging_bytes / *largest);
  topology.replicas = {options_.replicas.size, options_.replicas.index};
  topology.probe = options_.probe;
  if (reported_chunks_ < arena_->num_first()) {
    growth_.emplace(*arena_, cpu_tier::GrowthOptions{.pinning_bandwidth_limit =
                                                         options_.pinning_bandwidth_limit});
  }
}

WorkerEngine::Impl::~Impl() {
  growth_.reset();
  bool is_quiet = engine_->end();
  // The stream's destructor would wait for the engine's work without a bound.
  if (compute_ && !compute_->synchronize(is_quiet ? options_.transfer_timeout : kNoTime)) {
    if (is_quiet && !device_->lost()) {
      std::fprintf(stderr,
                   "kvferry: %s: work on the engine's stream has not ended within "
                   "transfer_timeout_s of the worker's end; its memory is kept until the process "
                   "ends. A hung device is the usual cause: restart the process\n",
                   rank_text().c_str());
    }
    is_quiet = false;
    bury(std::move(compute_));
  }
  compute_.reset();
  engine_.reset();
  const auto loss = device_->lost();
  if (is_quiet && (!loss || loss->memory == gpu::LostMemory::kQuiet)) return;
  bury(std::move(arena_));
  bury(std::move(device_));
}

void WorkerEngine::Impl::check_device() {
  if (const auto quarantine = engine_->quarantine()) {
    throw DeviceError(rank_text() + ": " + to_string(*quarantine) +
                      "; the worker stops. Restart the process");
  }
  if (const auto loss = device_->lost()) {
    throw DeviceError(rank_text() + ": the device was lost at " + gpu::utc_text(loss->since) +
                      " (" + loss->why + "); it no longer touches memory, and nothing can be" +
                      " stored or loaded. Restart the process");
  }
}

StepPlan WorkerEngine::Impl::accept(std::span<const std::byte> bytes) {
  StepPlan plan = decode_plan(bytes);
  journal_.bound(plan);
  if (domain_ && plan.domain != *domain_) {
    throw ProtocolError(rank_text() + " got a plan of engine " +
                        std::to_string(plan.domain.value()) + " while it serves engine " +
                        std::to_string(domain_->value()));
  }
  if (plan.seq != last_seq_.next()) {
    throw ProtocolError(rank_text() + " got plan " + std::to_string(plan.seq.value()) +
                        " after plan " + std::to_string(last_seq_.value()) +
                        ": every rank must bind every step's metadata once, in order");
  }
  for (const StoreOrder& order : plan.stores) {
    check(order.transfer, order.slab_class, order.blocks);
  }
  for (const LoadOrder& order : plan.loads) {
    for (const ClassBlocks& part : order.parts) {
      check(order.transfer, part.slab_class, part.blocks);
    }
  }
  check_consistent(plan, options_.slots_per_chunk, under_way_);
  check_chunk_orders(plan);
  check_notices(plan.notices);
  check_awake(plan);
  if (growth_) growth_->go_gently();
  for (const StoreOrder& order : plan.stores) under_way_.insert(order.transfer);
  for (const LoadOrder& order : plan.loads) under_way_.insert(order.transfer);
  domain_ = report_.domain = plan.domain;
  last_seq_ = plan.seq;
  return plan;
}

void WorkerEngine::Impl::check_notices(std::span<const FailureNotice> notices) const {
  for (const FailureNotice& notice : notices) {
    const auto is_same = [&notice](const FailureNotice& earlier) {
      return earlier.transfer == notice.transfer ||
             earlier.engine_request_id == notice.engine_request_id;
    };
    if (std::none_of(notices_.begin(), notices_.end(), is_same)) continue;
    throw ProtocolError(rank_text() + " is to announce request " + notice.engine_request_id +
                        " or transfer " + std::to_string(notice.transfer.value()) +
                        " already; expected one notice until it was announced: scheduler and "
                        "workers must run the same kvferry version");
  }
}

void WorkerEngine::Impl::check(TransferId transfer, SlabClassId slab_class,
                               std::span<const BlockSlot> blocks) const {
  if (slab_class.value() >= classes_.size()) {
    throw ProtocolError("transfer " + std::to_string(transfer.value()) + " names slab class " +
                        std::to_string(slab_class.value()) + "; this rank has " +
                        std::to_string(classes_.size()));
  }
  const std::uint32_t of_chunk = options_.slots_per_chunk[slab_class.value()];
  const std::uint32_t num_blocks = classes_[slab_class.value()].geometry.num_blocks;
  for (const BlockSlot& pair : blocks) {
    if (pair.block.value() < num_blocks && is_usable(pair.slot.value() / of_chunk)) continue;
    throw ProtocolError("transfer " + std::to_string(transfer.value()) + " names block " +
                        std::to_string(pair.block.value()) + " and slot " +
                        std::to_string(pair.slot.value()) + "; this rank has " +
                        std::to_string(num_blocks) + " blocks and " +
                        std::to_string(std::uint64_t{reported_chunks_} * of_chunk) +
                        " slots, less those that it gave back");
  }
}

void WorkerEngine::Impl::start_loads(StepPlan& plan, gpu::Stream& compute) {
  transfer::Fence fence;
  for (LoadOrder& order : plan.loads) {
    if (order.parts.empty()) {
      // This rank has nothing to copy, but the scheduler side waits for its answer all the same.
      report_.loads.push_back({order.transfer, Outcome::kDone, ""});
      over_.push_back(order.transfer);
      continue;
    }
    if (!fence) fence = engine_->fence(compute);
    std::vector<transfer::LoadPart> parts;
    for (const ClassBlocks& part : order.parts) parts.push_back({part.slab_class, part.blocks});
    engine_->load(order.transfer, parts, fence);
  }
}

// Each slot of a replica group has one home, the only rank that writes it. The other ranks' loads
// see its bytes for this reason: the home reports the store after the host has seen the copy's
// event complete. By then a device's writes are in memory, and the host's streaming writes are
// fenced (sfence). The report goes to the scheduler side, and only a later plan names the slot in a
// load. Each passage between the processes is a system call or a lock, which orders the earlier
// writes before it.
WorkerEngine::WaitingStore WorkerEngine::Impl::take(StoreOrder& order) const {
  WaitingStore store{.transfer = order.transfer,
                     .slab_class = order.slab_class,
                     .ready = order.readiness == StoreReadiness::kNow,
                     .num_ordered = static_cast<std::uint32_t>(order.blocks.size()),
                     .blocks = {},
                     .positions = {}};
  const cpu_tier::ReplicaGroup& replicas = options_.replicas;
  if (!replicas.has_others()) {
    store.blocks = std::move(order.blocks);
    return store;
  }
  const cpu_tier::ArenaSlots& slots = classes_[order.slab_class.value()].slots;
  for (std::uint32_t i = 0; i < store.num_ordered; ++i) {
    if (!replicas.is_home_of(slots.piece_of(order.blocks[i].slot))) continue;
    store.blocks.push_back(order.blocks[i]);
    store.positions.push_back(i);
  }
  return store;
}

void WorkerEngine::Impl::finish_store(const WaitingStore& store) {
  const std::uint32_t prefix = store.gathered_prefix();
  const bool has_copies = engine_->seal(store.transfer);
  journal_.gathered(store.transfer, prefix, store.num_ordered, has_copies);
  if (!has_copies) {
    // Other ranks store the blocks that it counts, and no copy here will end it.
    if (prefix > 0) report_.stores.push_back({store.transfer, Outcome::kDone, ""});
    over_.push_back(store.transfer);
  }
  report_.gathered.push_back({store.transfer, prefix});
}

std::vector<std::string> WorkerEngine::Impl::collect() {
  check_device();
  check_growth();
  check_chunk_orders_ended();
  std::vector<std::string> failed;
  for (FailureNotice& notice : notices_) {
    report_.announced.push_back(notice.transfer);
    failed.push_back(std::move(notice.engine_request_id));
  }
  notices_.clear();
  for (const DamagedSlot& one : engine_->take_scrub_findings()) report_.scrubbed.push_back(one);
  if (under_way_.empty()) return failed;
  for (transfer::Completion& completion : engine_->poll()) note_end(std::move(completion));
  check_progress();
  return failed;
}

void WorkerEngine::Impl::note_end(transfer::Completion&& completion) {
  journal_.copied(completion);
  over_.push_back(completion.transfer);
  if (completion.outcome == Outcome::kDone && timings_.size() < kMaxTimings) {
    timings_.push_back({completion.kind, completion.queue_time, completion.device_time});
  }
  auto& ends = completion.kind == transfer::TransferKind::kLoad ? report_.loads : report_.stores;
  ends.push_back({completion.transfer, completion.outcome, std::move(completion.reason),
                  std::move(completion.damaged)});
}

void WorkerEngine::Impl::sleep() {
  if (engine_->is_asleep()) return;
  const auto num_moved = [this] {
    const transfer::TransferStats now = engine_->stats();
    return now.stored_bytes + now.loaded_bytes;
  };
  const auto hangs = [this] {
    return TimeoutError(
        rank_text() +
        ": copies of the KV cache have not gone on for transfer_timeout_s, so that it"
        " cannot be taken away (sleep mode); nothing was given back. A hung device"
        " or link is the usual cause: look for the driver's own messages (dmesg);"
        " restart the engine");
  };
  // A gather that no event marks has failed for the engine of transfers, and reads the cache still.
  if (compute_ && !compute_->synchronize(options_.transfer_timeout)) {
    check_device();
    throw hangs();
  }
  // Paced copies, or copies over a slow link, can take long. Copies that make no progress hang.
  for (std::uint64_t before = num_moved(); !engine_->sleep(options_.transfer_timeout);) {
    check_device();
    if (std::exchange(before, num_moved()) == before) throw hangs();
  }
  for (transfer::Completion& completion : engine_->poll()) {
    if (completion.kind == transfer::TransferKind::kLoad && completion.outcome == Outcome::kDone) {
      completion.outcome = Outcome::kCancelled;
      completion.reason = "the engine took its KV cache away before it was told of the load's end";
    }
    note_end(std::move(completion));
  }
  journal_.fell_asleep();
}

void WorkerEngine::Impl::wake(std::vector<gpu::BlockGeometry> geometries) {
  if (!engine_->is_asleep()) return;
  engine_->wake(std::move(geometries));
  journal_.woke();
}

void WorkerEngine::Impl::close() {
  if (growth_) growth_->close();
  if (engine_->close(options_.transfer_timeout)) {
    arena_->leave();
    return;
  }
  if (const auto quarantine = engine_->quarantine()) {
    throw DeviceError(rank_text() + " closes while memory is in doubt: " + to_string(*quarantine));
  }
  throw TimeoutError(rank_text() +
                     ": copies have not ended within transfer_timeout_s at shutdown; their memory"
                     " is still in use");
}

void WorkerEngine::Impl::check_awake(const StepPlan& plan) const {
  if (!engine_->is_asleep()) return;
  const bool stores = std::any_of(plan.stores.begin(), plan.stores.end(),
                                  [](const StoreOrder& order) { return !order.blocks.empty(); });
  const bool loads = std::any_of(plan.loads.begin(), plan.loads.end(),
                                 [](const LoadOrder& order) { return !order.parts.empty(); });
  if (!stores && !loads) return;
  throw ProtocolError(rank_text() + " got plan " + std::to_string(plan.seq.value()) +
                      ", which moves blocks, while it sleeps: the KV cache was unregistered and"
                      " not restored. If the engine's sleep failed on some rank, put it to sleep"
                      " again, and wake it up");
}

void WorkerEngine::Impl::check_progress() {
  const auto late = engine_->overdue(options_.transfer_timeout);
  if (!late) return;
  const bool is_load = late->kind == transfer::TransferKind::kLoad;
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(late->age);
  const std::string what = late->stall == transfer::Stall::kDriver
                               ? "no call of the device's driver has returned"
                           : is_load ? "its oldest copy to the device has not ended"
                                     : "its oldest copy to host memory has not ended";
  throw TimeoutError(rank_text() + ": " + (is_load ? "load " : "store ") +
                     std::to_string(late->transfer.value()) + " is under way, and " + what +
                     " for " + std::to_string(age.count()) +
                     " s (transfer_timeout_s); its memory may still be written, so the worker"
                     " stops. A hung device or link is the usual cause: look for the driver's own"
                     " messages (dmesg); restart the engine");
}

std::string WorkerEngine::Impl::take_report() {
  if (!domain_) return {};
  for (const TransferId transfer : over_) under_way_.erase(transfer);
  over_.clear();
  TransferId oldest = under_way_.empty() ? TransferId() : *under_way_.begin();
  for (const FailureNotice& notice : notices_) {
    if (oldest == TransferId() || notice.transfer < oldest) oldest = notice.transfer;
  }
  report_.executed = last_seq_;
  report_.oldest_under_way = oldest;
  if (report_.empty()) return {};
  std::string bytes = encode(report_);
  journal_.reported(bytes.size());
  StepReport next;
  next.domain = report_.domain;
  next.rank = report_.rank;
  report_ = std::move(next);
  return bytes;
}

}  // namespace kvferry::connector
