// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"

#include "toy_pool.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvferry::connector {

/// Follows plans and reports and checks by itself what holds for all of them: no slot is written
/// while another transfer writes or reads it on any rank, no block is read early while the step
/// writes it, no damaged slot is written again, every transfer ends once per rank, every failure is
/// announced once per rank and never beside another one of the same id.
class PlanOracle {
 public:
  /// Slots of one class, in units of memory that no slot has a part of.
  struct ClassUnits {
    std::uint32_t slots_per_chunk = 1;
    std::uint32_t units_per_slot = 1;
  };
  /// Of a tier of so many chunks, of which those from `first_chunks` on are not in use at first.
  PlanOracle(std::uint32_t num_chunks, std::uint32_t first_chunks, std::vector<ClassUnits> classes);

  /// What the step does beside the plan.
  struct Step {
    std::set<std::uint32_t> written;  ///< Blocks that it computes into.
    /// Blocks of requests that finished between their scheduling and the plan, and of nobody else.
    std::set<std::uint32_t> given_up;
    std::map<TransferId, std::uint64_t> load_uids;    ///< Which incarnation loads.
    std::map<TransferId, std::uint64_t> notice_uids;  ///< Whose failure it is.
  };
  void take_plan(const StepPlan& plan, const ToyPool& pool, const Step& step);
  void take_report(const StepReport& report);
  /// A rank announces ids to the engine: it does so for the notices of `report`, and no others.
  void take_announced(const std::vector<std::string>& ids, const StepReport& report) const;

  /// A load that ended on both ranks, or a failure that both announced.
  struct Told {
    std::string engine_id;  ///< Of a failure.
    std::uint64_t uid = 0;
    bool failed = false;
  };
  /// Since the last call.
  [[nodiscard]] std::vector<Told> take_ended_loads();
  [[nodiscard]] std::vector<Told> take_announced();

  [[nodiscard]] bool idle() const { return stores_.empty() && loads_.empty() && notices_.empty(); }
  /// Whether a rank may still write the incarnation's blocks.
  [[nodiscard]] bool loading(std::uint64_t uid) const;
  [[nodiscard]] bool announcing(std::uint64_t uid) const;
  /// Whether the rank has not ended something that it was sent.
  [[nodiscard]] bool owes(std::uint32_t rank) const;
  /// Slots that the rank may still write; and those of the stores that it has not ended.
  [[nodiscard]] std::uint32_t num_slots_written_by(std::uint32_t rank) const;
  [[nodiscard]] std::uint32_t num_slots_owed_by(std::uint32_t rank) const;
  [[nodiscard]] std::uint64_t num_transfers() const { return num_transfers_; }
  /// Slots that some rank has found damaged.
  [[nodiscard]] std::size_t num_damaged() const { return damaged_.size(); }

  std::uint64_t num_retired = 0;       ///< Chunks, on every rank.
  std::uint64_t num_restored = 0;      ///< Chunks, on every rank.
  std::uint64_t num_early_blocks = 0;  ///< Planned to be gathered at the bind.

 private:
  struct Transfer {
    std::uint64_t uid = 0;
    std::vector<std::uint32_t> units;
    /// Of `units`, where each block's begin; and the end.
    std::vector<std::size_t> first_units{0};
    bool failed = false;
    std::set<std::uint32_t> gathered_on;
    std::set<std::uint32_t> ended_on;
    /// Per rank, how many blocks from the first it may touch.
    std::uint32_t num_used[2] = {0, 0};
    [[nodiscard]] std::size_t num_blocks() const { return first_units.size() - 1; }
  };
  struct Notice {
    std::string engine_id;
    std::uint64_t uid = 0;
    std::set<std::uint32_t> announced_on;
  };

  [[nodiscard]] std::uint32_t first_unit(SlabClassId slab_class, SlotId slot) const;
  /// The slots' memory joins the transfer's, of which `writes` says whether it writes it.
  void take_slots(Transfer& transfer, SlabClassId slab_class, const std::vector<BlockSlot>& blocks,
                  bool writes) const;
  void check_memory(TransferId id, const Transfer& transfer, bool writes) const;
  void take_stores(const StepPlan& plan, const ToyPool& pool, const Step& step);
  void take_notices(const StepPlan& plan, const Step& step);
  void take_chunks(const StepPlan& plan);
  void end_chunks(const ChunkEnded& ended, RankId rank);
  void end(std::map<TransferId, Transfer>& transfers, const TransferEnded& ended, RankId rank);

  std::uint32_t num_chunks_;
  std::vector<ClassUnits> classes_;
  std::uint32_t units_per_chunk_ = 0;
  PlanSeq last_seq_;
  std::uint64_t num_transfers_ = 0;
  std::map<TransferId, Transfer> stores_;
  std::map<TransferId, Transfer> loads_;
  std::map<TransferId, Notice> notices_;
  /// Not in use on some rank: no transfer may have a slot in it.
  std::set<std::uint32_t> retired_;
  /// By the first chunk: what ranks were told and which of them have ended it; whether one failed.
  struct ChunksUnderWay {
    ChunkOrder order;
    std::set<std::uint32_t> ended_on;
    bool failed = false;
  };
  std::map<std::uint32_t, ChunksUnderWay> chunks_under_way_;
  std::set<TransferId> known_;  ///< Loads and notices, ended ones too.
  std::set<TransferId> noticed_;
  /// By the first unit of its memory, which stays with its class.
  std::set<std::uint32_t> damaged_;
  std::vector<Told> ended_;
  std::vector<Told> announced_;
};

}  // namespace kvferry::connector
