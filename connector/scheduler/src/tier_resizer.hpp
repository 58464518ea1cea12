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

/// Brings the tier to its target size, a few runs of chunks at a time.
///
/// A run is retired in three steps. The tier takes it out of use, which is possible only while no
/// slot of it is named, so no transfer touches it on any rank and no later plan names it. The next
/// plan orders every rank to retire it. When every rank has answered, it can be restored. A run is
/// restored in three steps, too: a plan orders every rank to restore it; when every rank has done
/// so, the tier takes it into use; and if one rank could not, all of them retire it again.
class TierResizer {
 public:
  /// The memory of the ranks, once all of them have registered.
  struct Shape {
    std::uint32_t first_chunks = 0;  ///< Chunks that become ready without an order.
    std::uint32_t max_chunks = 0;
    std::uint32_t run = 0;  ///< Chunks that are resized together. 0: no resizing.
  };

  TierResizer(cpu_tier::Tier& tier, std::uint32_t world_size)
      : chunks_(tier), world_size_(world_size) {}

  void begin(const Shape& shape);
  /// This many of the first chunks are ready on every rank, and in the tier.
  void set_ready(std::uint32_t num_chunks) { num_ready_ = num_chunks; }
  /// Chunks after the first ones can be restored from now on.
  void have_grown() { have_grown_ = true; }
  /// Sets how many chunks the tier is to have. Any number is allowed; the result is limited by the
  /// memory.
  void set_target(std::uint32_t num_chunks);

  /// Adds orders to a plan whose stores and loads are complete.
  void plan(StepPlan& plan);
  /// A rank has ended an order. Returns false if no answer of it was expected.
  [[nodiscard]] bool mark(RankId rank, const ChunkEnded& ended);
  /// Applies the answers.
  void settle();

  [[nodiscard]] std::uint32_t num_in_use() const {
    return num_ready_ - num_first_out_ + num_others_in_use_;
  }
  [[nodiscard]] std::uint32_t first_chunks() const { return shape_.first_chunks; }
  /// The size that the tier reaches, unless ranks fail.
  [[nodiscard]] std::uint32_t target() const;
  [[nodiscard]] TierSize size() const;

 private:
  /// What every rank was ordered for a run, and the ranks that have not answered.
  struct UnderWay {
    ChunkOrder order;
    std::set<RankId> silent = {};
    std::string failure = {};
    bool is_outdated = false;  ///< It was sent for an earlier target.
  };

  [[nodiscard]] ChunkOrder order_for(std::uint32_t first, ChunkChange change) const;
  void send(StepPlan& plan, const ChunkOrder& order);
  void retire(StepPlan& plan);
  void restore(StepPlan& plan);
  /// Whether a retired run can be restored without exceeding the target.
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
  std::uint32_t num_restoring_ = 0;  ///< In chunks.
  std::uint32_t num_retiring_ = 0;   ///< In chunks.
  /// By the first chunk of the run.
  std::map<std::uint32_t, UnderWay> under_way_;
  std::set<std::uint32_t> retired_;
  /// Some rank could not restore these runs, and the others have to retire them again.
  std::set<std::uint32_t> to_take_back_;
  /// Every run that could be retired has a slot that is named.
  bool is_blocked_ = false;
  std::string failure_;
};

}  // namespace kvferry::connector
