// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/cpu_tier/memory/arena_growth.hpp"

#include "rank_journal.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// Makes a rank's arena, with its first piece ready.
[[nodiscard]] std::unique_ptr<cpu_tier::Arena> make_arena(gpu::Device& device,
                                                          std::uint64_t chunk_bytes,
                                                          const WorkerOptions& options);

class WorkerEngine::Impl {
 public:
  Impl(std::unique_ptr<gpu::Device> device, std::vector<gpu::BlockGeometry> geometries,
       const WorkerOptions& options);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// Keeps the arena and the device until the process ends if the device may still touch them.
  ~Impl();

  /// Decodes the plan and checks that it is the next one, fits this rank and does not contradict
  /// itself or what is under way. Throws ProtocolError; nothing has changed then.
  [[nodiscard]] StepPlan accept(std::span<const std::byte> bytes);
  void start_loads(StepPlan& plan, gpu::Stream& compute);
  void cancel(std::span<const TransferId> transfers) {
    for (const TransferId transfer : transfers) engine_->cancel(transfer);
  }
  void expire(std::span<const TransferId> loads) {
    for (const TransferId load : loads) engine_->cancel_unbegun(load);
  }
  void take_notices(std::vector<FailureNotice> notices) {
    for (FailureNotice& notice : notices) notices_.push_back(std::move(notice));
  }
  [[nodiscard]] std::vector<std::string> collect();
  void sleep();
  void wake(std::vector<gpu::BlockGeometry> geometries);
  void close();
  [[nodiscard]] std::string take_report();
  [[nodiscard]] std::vector<TransferTiming> take_timings() { return std::exchange(timings_, {}); }

  /// The engine's compute stream; the engine names the same one in almost every step. The view of
  /// the old one waits for its work when it ends (worker_engine.hpp says why it has to).
  gpu::Stream& compute(std::uintptr_t native_handle) {
    if (!compute_ || compute_handle_ != native_handle) {
      compute_ = device_->view_stream(native_handle);
      compute_handle_ = native_handle;
    }
    return *compute_;
  }

  /// Begins what a plan orders for the arena's chunks.
  void resize(std::span<const ChunkOrder> orders);

  /// Takes the blocks of an order that this rank stores.
  [[nodiscard]] WaitingStore take(StoreOrder& order) const;
  void finish_store(const WaitingStore& store);

  [[nodiscard]] RankJournal& journal() { return journal_; }

  [[nodiscard]] std::string rank_text() const {
    return "rank " + std::to_string(options_.rank.value());
  }

  transfer::TransferEngine& engine() { return *engine_; }
  const cpu_tier::Arena& arena() const { return *arena_; }
  /// The slots of the first class.
  [[nodiscard]] const cpu_tier::ArenaSlots& slots() const { return classes_.front().slots; }
  [[nodiscard]] std::uint32_t num_ready() const {
    return static_cast<std::uint32_t>(slots().num_ready());
  }
  [[nodiscard]] std::uint32_t max_slots() const {
    return arena_->num_first() * options_.slots_per_chunk.front();
  }
  [[nodiscard]] std::string arena_text() const;
  [[nodiscard]] const cpu_tier::ArenaReport& arena_report() const { return arena_report_; }
  const gpu::Device& device() const { return *device_; }

 private:
  /// Throws DeviceError if the device is lost.
  void check_device();
  /// Takes note of the slots that have become ready. Throws ResourceError if no more become ready
  /// but more have to.
  void check_growth();
  void check_chunk_orders(const StepPlan& plan) const;
  /// Whether a plan may name the slots of a chunk, and whether an order for it is under way.
  [[nodiscard]] bool is_usable(std::uint32_t chunk) const;
  [[nodiscard]] bool is_changing(const ChunkOrder& order) const;
  /// The pieces that an order for these chunks concerns: to retire, the pieces that have no usable
  /// chunk any more; to restore, all pieces that hold some of these chunks.
  [[nodiscard]] cpu_tier::ChunkRange pieces_of(const ChunkOrder& order) const;
  /// Takes note of the orders that have ended.
  void check_chunk_orders_ended();
  void check(TransferId transfer, SlabClassId slab_class, std::span<const BlockSlot> blocks) const;
  /// Checks the notices against those that wait to be announced.
  void check_notices(std::span<const FailureNotice> notices) const;
  /// Throws ProtocolError if the plan moves a block while the KV cache is away.
  void check_awake(const StepPlan& plan) const;
  /// Notes the end for the next report.
  void note_end(transfer::Completion&& completion);
  /// Throws TimeoutError if the device or its link hangs.
  void check_progress();

  WorkerOptions options_;
  RankJournal journal_;
  std::unique_ptr<gpu::Device> device_;
  std::uint32_t num_blocks_;
  std::unique_ptr<cpu_tier::Arena> arena_;
  std::vector<transfer::BlockClass> classes_;
  std::unique_ptr<transfer::TransferEngine> engine_;
  std::uint32_t reported_chunks_;
  /// As of the start, and after the growth as of its end.
  cpu_tier::ArenaReport arena_report_;
  std::optional<cpu_tier::ArenaGrowth> growth_;
  /// By chunk of a resizable arena: whether it is out of use, from the order to retire it until it
  /// was restored. At first all chunks beyond the first ones are.
  std::vector<bool> is_retired_;
  /// The orders under way, in order.
  std::deque<ChunkOrder> chunk_orders_;
  std::unique_ptr<gpu::Stream> compute_;
  std::uintptr_t compute_handle_ = 0;
  std::optional<DomainId> domain_;
  PlanSeq last_seq_;
  /// Transfers of accepted plans whose end was not reported yet, gathered or not.
  std::set<TransferId> under_way_;
  /// Those of `under_way_` whose end is in the next report.
  std::vector<TransferId> over_;
  std::vector<FailureNotice> notices_;
  std::vector<TransferTiming> timings_;
  StepReport report_;
};

}  // namespace kvferry::connector
