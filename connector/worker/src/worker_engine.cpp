// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/worker/worker_engine.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"

#include "rank_journal.hpp"
#include "worker_impl.hpp"

#include <cstring>
#include <exception>
#include <memory>
#include <utility>

namespace kvferry::connector {
namespace {

/// Throws ConfigError for options that no rank can have.
void validate(const WorkerOptions& options, std::span<const gpu::BlockGeometry> geometries) {
  if (options.world_size == 0 || options.rank.value() >= options.world_size) {
    throw ConfigError("rank " + std::to_string(options.rank.value()) + " of world size " +
                      std::to_string(options.world_size) +
                      ": expected a rank below the world size");
  }
  if (geometries.empty() || geometries.size() != options.slots_per_chunk.size()) {
    throw ConfigError(std::to_string(geometries.size()) + " sizes of blocks and " +
                      std::to_string(options.slots_per_chunk.size()) +
                      " sizes of slots; expected one size of slots for each size of blocks");
  }
  if (options.num_chunks == 0) {
    throw ConfigError("the CPU tier has room for 0 blocks of " +
                      std::to_string(geometries.front().packed_bytes) +
                      " bytes; raise cpu_bytes_to_use");
  }
  if (!options.slot_bytes.empty() && options.slot_bytes.size() != geometries.size()) {
    throw ConfigError(std::to_string(options.slot_bytes.size()) + " sizes of slots in bytes and " +
                      std::to_string(geometries.size()) + " sizes of blocks; expected as many");
  }
}

/// Makes a call, and records what it throws and what invariant it finds broken.
template <class Call>
auto recorded(RankJournal& journal, const Call& call) {
  const RankJournal::Watch watch = journal.watch();
  try {
    return call();
  } catch (const std::exception& error) {
    journal.threw(error);
    throw;
  }
}

}  // namespace

WorkerEngine::WorkerEngine(std::unique_ptr<gpu::Device> device,
                           std::vector<gpu::BlockGeometry> geometries,
                           const WorkerOptions& options) {
  validate(options, geometries);
  impl_ = std::make_unique<Impl>(std::move(device), std::move(geometries), options);
}

WorkerEngine::~WorkerEngine() = default;

void WorkerEngine::bind(std::span<const std::byte> bytes, std::uintptr_t compute_stream) {
  recorded(impl_->journal(), [&] {
    StepPlan plan = impl_->accept(bytes);
    // What the last step did not save is lost, because its blocks may be overwritten by now.
    finish_stores();
    impl_->cancel(plan.cancels);
    impl_->expire(plan.expiries);
    impl_->take_notices(std::move(plan.notices));
    impl_->resize(plan.chunks);
    impl_->start_loads(plan, impl_->compute(compute_stream));
    for (StoreOrder& order : plan.stores) waiting_.push_back(impl_->take(order));
    if (waiting()) gather_ready(compute_stream);
  });
}

void WorkerEngine::gather_waiting(std::uintptr_t compute_stream) {
  recorded(impl_->journal(), [&] { gather_ready(compute_stream); });
}

void WorkerEngine::gather_ready(std::uintptr_t compute_stream) {
  for (WaitingStore& store : waiting_) {
    if (!store.ready) return;
    const std::span<const BlockSlot> rest = std::span(store.blocks).subspan(store.num_gathered);
    if (rest.empty()) continue;
    const std::uint32_t taken = impl_->engine().gather(impl_->compute(compute_stream),
                                                       store.transfer, store.slab_class, rest);
    store.num_gathered += taken;
    // The ring is full. But a store that has failed takes no more blocks; then it is another's
    // turn.
    if (taken < rest.size() && impl_->engine().takes_blocks(store.transfer)) return;
  }
}

void WorkerEngine::save(std::uintptr_t compute_stream) {
  if (!waiting()) return;
  recorded(impl_->journal(), [&] {
    impl_->journal().saved();
    for (WaitingStore& store : waiting_) store.ready = true;
    gather_ready(compute_stream);
    finish_stores();
  });
}

void WorkerEngine::finish_stores() {
  for (const WaitingStore& store : waiting_) impl_->finish_store(store);
  waiting_.clear();
}

void WorkerEngine::sleep() {
  recorded(impl_->journal(), [&] {
    finish_stores();
    impl_->sleep();
  });
}

bool WorkerEngine::is_asleep() const { return impl_->engine().is_asleep(); }

void WorkerEngine::wake(std::vector<gpu::BlockGeometry> geometries) {
  recorded(impl_->journal(), [&] { impl_->wake(std::move(geometries)); });
}

std::vector<std::string> WorkerEngine::collect() {
  return recorded(impl_->journal(), [&] { return impl_->collect(); });
}
std::string WorkerEngine::take_report() {
  return recorded(impl_->journal(), [&] { return impl_->take_report(); });
}

void WorkerEngine::close() {
  recorded(impl_->journal(), [&] { impl_->close(); });
}

std::uint64_t WorkerEngine::slot_bytes() const { return impl_->slots().slot_bytes(); }
std::uint32_t WorkerEngine::num_slots() const { return impl_->num_ready(); }
std::uint32_t WorkerEngine::max_slots() const { return impl_->max_slots(); }
std::string WorkerEngine::arena_text() const { return impl_->arena_text(); }

const cpu_tier::ArenaReport& WorkerEngine::arena_report() const { return impl_->arena_report(); }

const std::vector<std::string>& WorkerEngine::arena_warnings() const {
  return impl_->arena().warnings();
}
transfer::TransferStats WorkerEngine::stats() const { return impl_->engine().stats(); }

std::vector<TransferTiming> WorkerEngine::take_timings() { return impl_->take_timings(); }

std::string WorkerEngine::copy_paths_text() const { return impl_->engine().copy_paths_text(); }

std::string WorkerEngine::device_description() const { return impl_->device().description(); }

void WorkerEngine::unsafe_copy_slot(SlotId source, SlotId to) {
  const cpu_tier::ArenaSlots& slots = impl_->slots();
  KVFERRY_CHECK(slots.is_ready(source) && slots.is_ready(to),
                "unsafe_copy_slot names a slot that is not ready");
  std::memcpy(reinterpret_cast<void*>(slots.address(to)),
              reinterpret_cast<const void*>(slots.address(source)), slots.slot_bytes());
}

}  // namespace kvferry::connector
