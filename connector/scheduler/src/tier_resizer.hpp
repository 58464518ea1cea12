// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/scheduler_snapshot.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/cpu_tier/slots/retirable_chunks.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvferry::connector {

/// Makes the tier as large as it is to be, a few runs of chunks at a time.
///
/// A run goes in three steps: the tier takes it out of use, which it can only while no slot of it
/// is named, so that no transfer touches it on any rank and no later plan names it; the next plan
/// tells every rank to retire it; and when every rank has answered, it can be restored. It comes in
/// three steps, too: a plan tells every rank to restore it; when every rank has, the tier has it in
/// use; and if one could not, all of them retire it again.
class TierResizer {
 public:
  /// What the ranks have, once all of them have registered.
  struct Shape {
    std::uint32_t first_chunks = 0;  ///< Become ready without an order.
    std::uint32_t max_chunks = 0;
    std::uint32_t run = 0;  ///< Chunks that come and go together. 0: none do.
  };

  TierResizer(cpu_tier::Tier& tier, std::uint32_t world_size)
      : chunks_(tier), world_size_(world_size) {}

  void begin(const Shape& shape);
  /// Of the first chunks as many are ready on every rank, and in the tier.
  void set_ready(std::uint32_t num_chunks) { num_ready_ = num_chunks; }
  /// From the first chunks on others may follow.
  void have_grown() { have_grown_ = true; }
  /// How many chunks the tier is to have. Any number; it comes to what there is.
  void set_target(std::uint32_t num_chunks);

  /// Adds orders to a plan whose stores and loads are complete.
  void plan(StepPlan& plan);
  /// A rank has ended an order; false if it was not waited for.
  [[nodiscard]] bool mark(RankId rank, const ChunkEnded& ended);
  /// Does what follows from the answers.
  void settle();

  [[nodiscard]] std::uint32_t num_in_use() const {
    return num_ready_ - num_first_out_ + num_others_in_use_;
  }
  [[nodiscard]] std::uint32_t first_chunks() const { return shape_.first_chunks; }
  /// What it comes to, unless ranks fail.
  [[nodiscard]] std::uint32_t target() const;
  [[nodiscard]] TierSize size() const;

 private:
  /// What every rank was told about a run, and which have not answered.
  struct UnderWay {
    ChunkOrder order;
    std::set<RankId> silent = {};
    std::string failure = {};
  };

  [[nodiscard]] ChunkOrder order_for(std::uint32_t first, ChunkChange change) const;
  void send(StepPlan& plan, const ChunkOrder& order);
  void retire(StepPlan& plan);
  void restore(StepPlan& plan);
  /// Whether a run that is retired can be restored so that the tier is no larger than it is to be.
  [[nodiscard]] bool can_restore() const;
  void count(const ChunkOrder& order);

  cpu_tier::RetirableChunks chunks_;
  const std::uint32_t world_size_;
  Shape shape_;
  bool have_grown_ = false;
  bool is_target_set_ = false;
  std::uint32_t target_ = 0;
  std::uint32_t num_ready_ = 0;
  std::uint32_t num_first_out_ = 0;
  std::uint32_t num_others_in_use_ = 0;
  std::uint32_t num_restoring_ = 0;  ///< Chunks.
  std::uint32_t num_retiring_ = 0;   ///< Chunks.
  /// By the first chunk of the run.
  std::map<std::uint32_t, UnderWay> under_way_;
  std::set<std::uint32_t> retired_;
  /// Some rank could not restore them, and the others have to retire them again.
  std::set<std::uint32_t> to_take_back_;
  /// Every run that could go has a slot that is named.
  bool is_blocked_ = false;
  std::string failure_;
};

}  // namespace kvferry::connector
