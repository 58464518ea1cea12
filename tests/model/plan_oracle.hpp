// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/step_plan.hpp"
#include "kvferry/connector/step_report.hpp"

#include "toy_pool.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvferry::connector {

/// Follows plans and reports and checks by itself what holds for all of them: no slot is written
/// while another transfer writes or reads it on that rank, no block is read early while the step
/// writes it, every transfer ends once per rank.
class PlanOracle {
 public:
  explicit PlanOracle(std::uint32_t num_slots) : num_slots_(num_slots) {}

  /// A load that ended on both ranks.
  struct EndedLoad {
    std::string engine_id;
    std::uint64_t uid = 0;
    bool failed = false;
  };

  /// `written`: blocks that this step computes into. `uids`: which incarnation loads under an id.
  void take_plan(const StepPlan& plan, const ToyPool& pool, const std::set<std::uint32_t>& written,
                 const std::map<std::string, std::uint64_t>& uids);
  void take_report(const StepReport& report);
  /// Loads that ended on all ranks since the last call.
  [[nodiscard]] std::vector<EndedLoad> take_ended_loads();
  [[nodiscard]] bool idle() const { return stores_.empty() && loads_.empty(); }
  [[nodiscard]] bool loading(const std::string& engine_id) const;

  std::uint64_t num_early_blocks = 0;  ///< Planned to be gathered at the bind.

 private:
  struct Transfer {
    std::string engine_id;
    std::uint64_t uid = 0;
    std::vector<BlockSlot> blocks;
    bool failed = false;
    std::set<std::uint32_t> gathered_on;
    std::set<std::uint32_t> ended_on;
    /// Per rank, how many blocks from the first it may touch.
    std::uint32_t num_used[2] = {0, 0};
  };

  void check_slots(TransferId transfer, const std::vector<BlockSlot>& blocks, bool writes);
  void end(std::map<TransferId, Transfer>& transfers, const TransferEnded& ended, RankId rank);

  std::uint32_t num_slots_;
  PlanSeq last_seq_;
  std::map<TransferId, Transfer> stores_;
  std::map<TransferId, Transfer> loads_;
  std::vector<EndedLoad> ended_;
};

}  // namespace kvferry::connector
