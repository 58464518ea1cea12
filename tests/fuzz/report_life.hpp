// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"

#include "fake_engine.hpp"

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::fuzz {

/// A scheduler side of two ranks in the middle of its work, which any messages are folded into.
/// What it refuses changes nothing; whatever it took, the ranks' right reports end all that was
/// under way, and nothing is lost. Stops the process where that is not so. One thread.
class ReportLife {
 public:
  static constexpr std::uint32_t kNumBlocks = 32;
  static constexpr std::uint32_t kNumChunks = 16;
  static constexpr std::uint32_t kNumRanks = 2;
  static constexpr std::uint32_t kRun = 4;  ///< Chunks that come and go together.
  static constexpr std::uint64_t kSlotBytes = 64;
  static constexpr std::uint32_t kBlockTokens = 4;
  static constexpr connector::DomainId kDomain{7};

  /// How far it is when the messages come.
  enum class Stage : std::uint8_t {
    kNew,
    kOneRegistered,
    kIdle,
    kStoring,
    kLoading,
    kAnnouncing,
    kResizing
  };
  static constexpr std::uint8_t kNumStages = 7;

  /// Numbers of transfers are the same in every life of a stage.
  explicit ReportLife(Stage stage);
  /// One fold.
  void take(const std::vector<std::string>& messages);
  /// After any number of them.
  void expect_all_ends();

 private:
  [[nodiscard]] static connector::StepReport registration(RankId rank);
  [[nodiscard]] static connector::StepReport report_of(RankId rank);
  void fold(const std::vector<std::string>& messages);
  void register_all();
  /// Notes what the plan asks of the ranks.
  void plan();
  /// What each rank has to say of all that was planned, once; refusals are for what it said before.
  void report_the_rest();
  void begin_storing(std::string_view id, const std::vector<std::uint64_t>& numbers,
                     std::uint32_t first_block);
  void store(std::string_view id, const std::vector<std::uint64_t>& numbers,
             std::uint32_t first_block);
  void begin_loading(std::string_view id, const std::vector<std::uint64_t>& numbers);

  connector::FakePool pool_{kNumBlocks};
  std::unique_ptr<connector::SchedulerEngine> engine_;
  std::vector<connector::StepPlan> plans_;
  std::multiset<std::string> waiting_;  ///< Requests whose load the engine waits for.
};

}  // namespace kvferry::fuzz
