// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::fuzz {

/// A rank on the host back end and a model of its bytes. It takes any message for a plan: what it
/// accepts ends once and moves just the bytes that the plan says, what it refuses changes nothing,
/// and a right plan works after either. Stops the process where that is not so. One thread.
class PlanLife {
 public:
  static constexpr std::uint32_t kNumBlocks = 12;
  static constexpr std::uint32_t kNumChunks = 6;
  static constexpr std::uint64_t kRingBlocks = 4;
  static constexpr connector::DomainId kDomain{7};

  /// What is done around a message.
  struct Way {
    bool as_it_is = false;   ///< With the domain and the number that it has, not the right ones.
    bool twice = false;      ///< Sent again, with the next number, before anything is awaited.
    bool unsaved = false;    ///< The step ends at the bind.
    bool cancelled = false;  ///< The next plan cancels all of its transfers.
  };

  PlanLife();
  void take(const Way& way, std::string message);

 private:
  /// What is owed for plans that were accepted.
  struct Owed {
    std::map<TransferId, connector::StoreOrder> stores;
    std::map<TransferId, connector::LoadOrder> loads;
    std::multiset<std::string> announcements;
    std::vector<connector::ChunkOrder> chunks;
  };

  void restart();
  /// Whether the rank took it.
  bool bind(const std::string& message);
  void bind_right(connector::StepPlan plan);
  [[nodiscard]] connector::StepPlan next_plan() const;
  /// Until all that is owed has come, each once.
  void settle();
  void note(const connector::StepReport& report);
  [[nodiscard]] bool owes() const {
    return !owed_.stores.empty() || !owed_.loads.empty() || !owed_.chunks.empty();
  }
  void end_in_model(const connector::ChunkOrder& order);
  /// Chunks that the rank gave back are ready again.
  void restore_all();
  void store_in_model(const connector::StoreOrder& order, std::uint32_t num_gathered);
  void load_in_model(const connector::LoadOrder& order);
  /// A fragment of a block, in the pool.
  [[nodiscard]] static std::size_t offset_of(std::uint32_t fragment, BlockId block);
  /// Of a slot, in the arena.
  [[nodiscard]] std::size_t offset_of(SlabClassId slab_class, SlotId slot) const;
  void expect_at_rest() const;
  void expect_right_plan_works();

  std::vector<std::uint8_t> pool_;
  std::vector<std::uint8_t> model_pool_;
  std::vector<std::uint8_t> model_arena_;
  std::uint64_t chunk_bytes_ = 0;
  std::unique_ptr<connector::WorkerEngine> engine_;
  PlanSeq last_seq_;
  std::uint64_t num_right_plans_ = 0;
  /// Whether copies were cut short, so that the model does not know the bytes.
  bool is_unknown_ = false;
  Owed owed_;
  std::set<std::uint32_t> retired_;  ///< Chunks.
};

}  // namespace kvferry::fuzz
