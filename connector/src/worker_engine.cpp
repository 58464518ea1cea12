// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/worker_engine.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/connector/step_plan.hpp"
#include "kvferry/connector/step_report.hpp"
#include "kvferry/cpu_tier/arena.hpp"

#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

namespace kvferry::connector {

class WorkerEngine::Impl {
 public:
  Impl(std::unique_ptr<gpu::Device> device, gpu::BlockGeometry geometry, WorkerOptions options)
      : options_(options),
        device_(std::move(device)),
        slot_bytes_(geometry.packed_bytes),
        num_blocks_(geometry.num_blocks),
        arena_(*device_, slot_bytes_, options_.num_slots),
        engine_(*device_, {std::move(geometry)}, arena_, options_.transfer) {
    report_.rank = options_.rank;
    report_.topology =
        RankTopology{options_.world_size, num_blocks_, slot_bytes_, options_.num_slots,
                     static_cast<std::uint32_t>(options_.transfer.staging_bytes / slot_bytes_)};
  }

  /// Decodes the plan and checks that it is the next one and fits this rank.
  [[nodiscard]] StepPlan accept(std::span<const std::byte> bytes);
  void start_loads(StepPlan& plan, gpu::Stream& compute);
  void cancel(std::span<const CancelOrder> orders);
  [[nodiscard]] EndedLoads collect();
  [[nodiscard]] std::string take_report();

  /// The engine's compute stream; the engine names the same one in almost every step.
  gpu::Stream& compute(std::uintptr_t native_handle) {
    if (!compute_ || compute_handle_ != native_handle) {
      compute_ = device_->view_stream(native_handle);
      compute_handle_ = native_handle;
    }
    return *compute_;
  }

  void finish_store(TransferId transfer, std::uint32_t num_gathered) {
    if (engine_.seal(transfer)) ++num_under_way_;
    report_.gathered.push_back({transfer, num_gathered});
  }

  transfer::TransferEngine& engine() { return engine_; }
  const cpu_tier::Arena& arena() const { return arena_; }
  const WorkerOptions& options() const { return options_; }

 private:
  struct Load {
    std::string engine_request_id;
    bool doomed = false;
  };

  void check(TransferId transfer, GroupId group, std::span<const BlockSlot> blocks) const;
  void end_load(TransferId transfer, EndedAs outcome, std::string reason);

  WorkerOptions options_;
  std::unique_ptr<gpu::Device> device_;
  std::uint64_t slot_bytes_;
  std::uint32_t num_blocks_;
  cpu_tier::Arena arena_;
  transfer::TransferEngine engine_;
  std::unique_ptr<gpu::Stream> compute_;
  std::uintptr_t compute_handle_ = 0;
  std::optional<DomainId> domain_;
  PlanSeq last_seq_;
  std::unordered_map<TransferId, Load> loads_;
  /// Transfers that the transfer engine still owes an end.
  std::uint64_t num_under_way_ = 0;
  EndedLoads ended_loads_;
  StepReport report_;
};

StepPlan WorkerEngine::Impl::accept(std::span<const std::byte> bytes) {
  StepPlan plan = decode_plan(bytes);
  if (domain_ && plan.domain != *domain_) {
    throw ProtocolError("rank " + std::to_string(options_.rank.value()) + " got a plan of engine " +
                        std::to_string(plan.domain.value()) + " while it serves engine " +
                        std::to_string(domain_->value()));
  }
  if (plan.seq != last_seq_.next()) {
    throw ProtocolError("rank " + std::to_string(options_.rank.value()) + " got plan " +
                        std::to_string(plan.seq.value()) + " after plan " +
                        std::to_string(last_seq_.value()) +
                        ": every rank must bind every step's metadata once, in order");
  }
  for (const StoreOrder& order : plan.stores) check(order.transfer, order.group, order.blocks);
  for (const LoadOrder& order : plan.loads) check(order.transfer, order.group, order.blocks);
  domain_ = report_.domain = plan.domain;
  last_seq_ = plan.seq;
  return plan;
}

void WorkerEngine::Impl::check(TransferId transfer, GroupId group,
                               std::span<const BlockSlot> blocks) const {
  if (group != GroupId(0)) {
    throw ProtocolError("transfer " + std::to_string(transfer.value()) + " names KV cache group " +
                        std::to_string(group.value()) + "; this rank has group 0 only");
  }
  for (const BlockSlot& pair : blocks) {
    if (pair.block.value() < num_blocks_ && pair.slot.value() < options_.num_slots) continue;
    throw ProtocolError("transfer " + std::to_string(transfer.value()) + " names block " +
                        std::to_string(pair.block.value()) + " and slot " +
                        std::to_string(pair.slot.value()) + "; this rank has " +
                        std::to_string(num_blocks_) + " blocks and " +
                        std::to_string(options_.num_slots) + " slots");
  }
}

void WorkerEngine::Impl::start_loads(StepPlan& plan, gpu::Stream& compute) {
  transfer::Fence fence;
  for (LoadOrder& order : plan.loads) {
    loads_.emplace(order.transfer, Load{std::move(order.engine_request_id), order.doomed});
    if (order.doomed || order.blocks.empty()) {
      // Nothing to copy; the engine counts this rank's report all the same.
      end_load(order.transfer, order.doomed ? EndedAs::kFailed : EndedAs::kCancelled,
               order.doomed ? "its slots were gone before it was planned" : "");
      continue;
    }
    if (!fence) fence = engine_.fence(compute);
    engine_.load(order.transfer, order.group, order.blocks, fence);
    ++num_under_way_;
  }
}

void WorkerEngine::Impl::cancel(std::span<const CancelOrder> orders) {
  for (const CancelOrder& order : orders) {
    if (order.kind == CancelKind::kDoom) {
      const auto found = loads_.find(order.transfer);
      if (found != loads_.end()) found->second.doomed = true;
    }
    engine_.cancel(order.transfer);
  }
}

void WorkerEngine::Impl::end_load(TransferId transfer, EndedAs outcome, std::string reason) {
  const auto found = loads_.find(transfer);
  KVFERRY_CHECK(found != loads_.end(),
                "load " + std::to_string(transfer.value()) + " ended twice or never began");
  Load& load = found->second;
  if (load.doomed && outcome != EndedAs::kFailed) {
    outcome = EndedAs::kFailed;
    reason = "the cache was reset";
  }
  ended_loads_.ended.push_back(load.engine_request_id);
  if (outcome != EndedAs::kDone) ended_loads_.failed.push_back(std::move(load.engine_request_id));
  report_.loads.push_back({transfer, outcome, std::move(reason)});
  loads_.erase(found);
}

EndedLoads WorkerEngine::Impl::collect() {
  if (num_under_way_ == 0) return std::exchange(ended_loads_, {});
  for (transfer::Completion& completion : engine_.poll()) {
    --num_under_way_;
    const EndedAs outcome = completion.outcome == transfer::TransferOutcome::kDone ? EndedAs::kDone
                            : completion.outcome == transfer::TransferOutcome::kFailed
                                ? EndedAs::kFailed
                                : EndedAs::kCancelled;
    if (completion.kind == transfer::TransferKind::kLoad) {
      end_load(completion.transfer, outcome, std::move(completion.reason));
    } else {
      report_.stores.push_back({completion.transfer, outcome, std::move(completion.reason)});
    }
  }
  if (const auto late = engine_.overdue(options_.transfer_timeout)) {
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(late->age);
    throw TimeoutError("rank " + std::to_string(options_.rank.value()) + ": " +
                       (late->kind == transfer::TransferKind::kLoad ? "load " : "store ") +
                       std::to_string(late->transfer.value()) + " has not ended for " +
                       std::to_string(age.count()) +
                       " s (transfer_timeout_s); its memory may still be written, so the worker "
                       "stops. A hung device"
                       " or link is the usual cause");
  }
  return std::exchange(ended_loads_, {});
}

std::string WorkerEngine::Impl::take_report() {
  if (report_.empty() || !domain_) return {};
  const std::string bytes = encode(report_);
  report_ = StepReport{report_.domain, report_.rank, std::nullopt, {}, {}, {}};
  return bytes;
}

WorkerEngine::WorkerEngine(std::unique_ptr<gpu::Device> device, gpu::BlockGeometry geometry,
                           WorkerOptions options) {
  if (options.world_size == 0 || options.rank.value() >= options.world_size) {
    throw ConfigError("rank " + std::to_string(options.rank.value()) + " of world size " +
                      std::to_string(options.world_size) +
                      ": expected a rank below the world size");
  }
  if (options.num_slots == 0) {
    throw ConfigError("the CPU tier has room for 0 blocks of " +
                      std::to_string(geometry.packed_bytes) + " bytes; raise cpu_bytes_to_use");
  }
  impl_ = std::make_unique<Impl>(std::move(device), std::move(geometry), options);
}

WorkerEngine::~WorkerEngine() = default;

void WorkerEngine::bind(std::span<const std::byte> bytes, std::uintptr_t compute_stream) {
  StepPlan plan = impl_->accept(bytes);
  // What the last step did not save is lost: its blocks may be written by now.
  for (const WaitingStore& store : waiting_)
    impl_->finish_store(store.transfer, store.num_gathered);
  waiting_.clear();
  impl_->cancel(plan.cancels);
  impl_->start_loads(plan, impl_->compute(compute_stream));
  for (StoreOrder& order : plan.stores) {
    waiting_.push_back({order.transfer, order.group, order.readiness == StoreReadiness::kNow,
                        std::move(order.blocks)});
  }
  pump(compute_stream);
}

void WorkerEngine::gather_waiting(std::uintptr_t compute_stream) {
  for (WaitingStore& store : waiting_) {
    if (!store.ready) return;
    const std::span<const BlockSlot> rest = std::span(store.blocks).subspan(store.num_gathered);
    if (rest.empty()) continue;
    const std::uint32_t taken =
        impl_->engine().gather(impl_->compute(compute_stream), store.transfer, store.group, rest);
    store.num_gathered += taken;
    if (taken < rest.size()) return;
  }
}

void WorkerEngine::save(std::uintptr_t compute_stream) {
  for (WaitingStore& store : waiting_) store.ready = true;
  pump(compute_stream);
  for (const WaitingStore& store : waiting_)
    impl_->finish_store(store.transfer, store.num_gathered);
  waiting_.clear();
}

EndedLoads WorkerEngine::collect() { return impl_->collect(); }
std::string WorkerEngine::take_report() { return impl_->take_report(); }

void WorkerEngine::close() {
  if (impl_->engine().close(impl_->options().transfer_timeout)) return;
  throw TimeoutError(
      "rank " + std::to_string(impl_->options().rank.value()) +
      ": copies have not ended within transfer_timeout_s at shutdown; their memory is"
      " still in use");
}

std::uint64_t WorkerEngine::slot_bytes() const { return impl_->arena().slot_bytes(); }
std::uint32_t WorkerEngine::num_slots() const { return impl_->arena().num_slots(); }
transfer::TransferStats WorkerEngine::stats() const { return impl_->engine().stats(); }

void WorkerEngine::unsafe_copy_slot(SlotId source, SlotId to) {
  const cpu_tier::Arena& arena = impl_->arena();
  KVFERRY_CHECK(source.value() < arena.num_slots() && to.value() < arena.num_slots(),
                "unsafe_copy_slot beyond the arena");
  std::memcpy(reinterpret_cast<void*>(arena.slot_address(to)),
              reinterpret_cast<const void*>(arena.slot_address(source)), arena.slot_bytes());
}

}  // namespace kvferry::connector
