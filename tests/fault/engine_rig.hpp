// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "fake_engine.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::fault {

/// A scheduler side, two ranks on host devices, and as much of an engine as schedules requests,
/// computes blocks and counts what it is told, as vLLM does. Blocks are named by the number that
/// their hash stands for; the bytes of a block follow from it and the rank. Every check is a
/// GoogleTest expectation; every wait has a bound.
class EngineRig {
 public:
  using Numbers = std::vector<std::uint64_t>;

  static constexpr std::uint32_t kBlockTokens = 4;
  static constexpr std::uint32_t kNumBlocks = 256;
  static constexpr std::uint32_t kNumSlots = 24;
  /// Less than a prefill, so that plans go through the backlog.
  static constexpr std::uint32_t kRingBlocks = 3;
  static constexpr std::uint64_t kBlockBytes = 24 + 40;

  /// Throws what WorkerEngine throws; nothing is left on the devices then.
  EngineRig();
  /// Checks that nothing is left on the devices.
  ~EngineRig();
  EngineRig(const EngineRig&) = delete;
  EngineRig& operator=(const EngineRig&) = delete;

  // ---- what the engine does between two steps ----

  /// A request that computes whole blocks in the next step, and its next one later.
  void prefill(const std::string& id, const Numbers& numbers);
  void decode(const std::string& id, std::uint64_t number);
  void finish(const std::string& id) { scheduler_->on_finished(id); }
  /// A request that loads what is found of `numbers`; the number of blocks.
  std::uint32_t begin_load(const std::string& id, const Numbers& numbers);
  /// The engine aborts a request that loads; it waits for the end all the same.
  void abort_load(const std::string& id);
  void reset_cache() { scheduler_->reset_cache(); }

  // ---- steps ----

  /// One step of scheduler and ranks; `before_fold` runs when all ranks have executed the plan.
  void step(const std::function<void()>& before_fold = {});
  /// Steps until nothing is in flight or waits for its turn, and checks that every load was told,
  /// once.
  void settle();
  /// Steps until all ranks have registered.
  void register_ranks();
  /// Closes all ranks, whatever is in flight, and folds their last words.
  void close();

  [[nodiscard]] connector::SchedulerSnapshot view() const { return scheduler_->snapshot(); }
  [[nodiscard]] connector::SchedulerEngine& scheduler() { return *scheduler_; }
  [[nodiscard]] connector::WorkerEngine& rank(std::size_t index) { return *ranks_[index].engine; }
  /// Loads that were told to the engine; those told as failed are among them.
  [[nodiscard]] std::uint32_t num_told() const { return num_told_; }
  [[nodiscard]] std::uint32_t num_told_failed() const { return num_told_failed_; }
  /// Whether a rank has ring memory that nothing can prove to be quiet. It takes stores no more,
  /// and what its fellow takes is in vain. A store that was cancelled just now looks like it.
  [[nodiscard]] bool has_ring_in_doubt() const;

 private:
  struct Rank {
    std::vector<std::uint8_t> pool;
    std::unique_ptr<gpu::Device> device;
    std::unique_ptr<connector::WorkerEngine> engine;
  };
  struct Request {
    std::shared_ptr<connector::FakeHashes> hashes;
    std::uint32_t num_blocks = 0;
  };
  struct Load {
    std::vector<BlockId> table;
    Numbers numbers;
    bool aborted = false;
  };
  struct Write {
    BlockId block;
    std::uint64_t number = 0;
  };

  [[nodiscard]] static std::uint8_t content(std::size_t rank, std::uint64_t number,
                                            std::uint64_t offset);
  [[nodiscard]] std::uint8_t& byte(Rank& rank, BlockId block, std::uint64_t offset);
  void write(std::size_t rank, BlockId block, std::uint64_t number);
  [[nodiscard]] bool holds(std::size_t rank, BlockId block, std::uint64_t number);
  [[nodiscard]] std::vector<BlockId> allocate(std::size_t count);
  /// Takes all blocks out of the prefix cache: what waits for its store has missed its turn.
  void reallocate_all();
  /// Collects from all ranks, folds and tells the engine.
  void collect_and_fold(const std::function<void()>& before_fold);
  void tell(const std::string& id, std::uint32_t num_announced);

  connector::FakePool pool_{kNumBlocks};
  std::vector<Rank> ranks_;
  std::unique_ptr<connector::SchedulerEngine> scheduler_;
  std::uint32_t next_block_ = 1;
  std::map<std::string, Request> requests_;
  std::map<std::string, Load> loads_;
  std::vector<Write> writes_;  ///< Of the step that is being scheduled.
  std::uint32_t num_told_ = 0;
  std::uint32_t num_told_failed_ = 0;
};

}  // namespace kvferry::fault
