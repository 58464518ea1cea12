// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/engine_step.hpp"
#include "kvferry/connector/wire/owner.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "damage_record.hpp"
#include "decision_journal.hpp"
#include "load_patience.hpp"
#include "open_transfer.hpp"
#include "overdue.hpp"
#include "prefix_search.hpp"
#include "rank_patience.hpp"
#include "rank_roll.hpp"
#include "request_table.hpp"

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// The state of a load.
///
/// kBegun -> kSent (planned) -> reported to the engine when every rank has ended it: at once if it
/// succeeded or its owner was aborted; otherwise kFailed -> kAnnounced (its notice was planned) ->
/// reported when every rank has announced it. A load that must not be copied goes from kBegun to
/// kFailed. If another incarnation got the id of its owner, the engine is not told. A kSent load
/// that has waited for too long expires: ranks that have not begun it drop it, and then it has
/// failed like any other.
enum class LoadState : std::uint8_t { kBegun, kSent, kFailed, kAnnounced };

/// The loads under way. Each owns its lease until every rank has ended it, or until it is cancelled
/// before its plan was sent. Called by the scheduler's thread alone.
class LoadBook {
 public:
  LoadBook(cpu_tier::Tier& tier, RequestTable& requests, std::uint32_t world_size)
      : tier_(tier), requests_(requests), world_size_(world_size), damage_(world_size) {}
  ~LoadBook();
  LoadBook(const LoadBook&) = delete;
  LoadBook& operator=(const LoadBook&) = delete;

  /// It is told how loads end. It outlives this object; null: there is none.
  void set_journal(DecisionJournal* journal) { journal_ = journal; }

  /// Starts the request's load; its order enters the next plan. Without leases there is nothing to
  /// copy from, and the load fails.
  void begin(Request& request, TransferId transfer, std::optional<LeasedPrefix> leased);
  /// Moves the orders of loads begun since the last plan, cancellations and notices into `plan`.
  /// Loads that have waited for too long expire, each once, however the ranks answer.
  void plan(StepPlan& plan, const RankPatience& patience, const LoadPatience& load_patience);
  /// The load's owner is gone. If no rank knows of the load yet, it is not copied; otherwise it
  /// ends with its copies.
  void cancel(TransferId transfer);
  /// Tells the ranks to drop these stores.
  void cancel_stores(std::span<const TransferId> stores) {
    cancels_.insert(cancels_.end(), stores.begin(), stores.end());
  }
  /// Makes every load under way end as a failure, including loads that some ranks have ended
  /// already.
  void doom_all();

  /// Throws ProtocolError if the rank reports damaged slots that the load does not read, or that
  /// the tier does not have. Every report fits a load that is not under way.
  void expect_fits(const StepReport& report) const;
  /// False if the load is not under way, or if the rank has reported its end before.
  [[nodiscard]] bool mark_ended(RankId rank, const TransferEnded& ended);
  [[nodiscard]] bool mark_announced(RankId rank, TransferId transfer);
  void mark_scrubbed(RankId rank, const DamagedSlot& found) { scrubbed_.push_back({rank, found}); }
  /// Withdraws the slots that ranks have found damaged. If a load ended on all ranks and failed for
  /// another reason, its keys are forgotten.
  void settle_failures();
  /// Gives back the leases of ended loads. Returns what to tell their owners.
  [[nodiscard]] FoldResult settle_ends();
  /// Engine ids of loads that succeeded since the last call, for owners that wait.
  [[nodiscard]] std::vector<std::string> take_succeeded() { return std::exchange(succeeded_, {}); }

  /// Adds the loads about which ranks have been silent for too long, and these ranks.
  void add_overdue(const RankPatience& patience, std::optional<Overdue>& found) const;

  /// Whether a failure of that id is on its way to the engine. The engine would apply it to any
  /// load under that id, so none may start.
  [[nodiscard]] bool announces(const std::string& engine_id) const {
    return announcing_.contains(engine_id);
  }
  /// Whether the load is still under way, however it will end.
  [[nodiscard]] bool knows(TransferId transfer) const { return loads_.contains(transfer); }
  /// The request that waits for the load, unless the load is known to fail.
  [[nodiscard]] const Request* waiting_request(TransferId transfer) const;
  [[nodiscard]] std::size_t num_in_flight() const { return loads_.size(); }
  /// The oldest loads, so many at most.
  [[nodiscard]] std::vector<OpenTransfer> oldest(std::size_t most) const;
  /// Number of leased slots. A slot counts once per lease.
  [[nodiscard]] std::size_t num_leases() const;
  [[nodiscard]] std::uint64_t num_loaded() const { return num_loaded_; }
  [[nodiscard]] std::uint64_t num_failed() const { return num_failed_; }
  /// Number of failed loads that some rank had not begun in time.
  [[nodiscard]] std::uint64_t num_expired() const { return num_expired_; }
  [[nodiscard]] std::uint64_t num_stale() const { return num_stale_; }
  [[nodiscard]] const DamageRecord& damage() const { return damage_; }
  /// Lines for the log about damaged blocks since the last call, one per load and rank.
  [[nodiscard]] std::vector<std::string> take_damage_lines() {
    return std::exchange(damage_lines_, {});
  }

 private:
  struct Load {
    Owner owner;
    std::string engine_id;
    LeasedPrefix parts;  ///< The blocks are moved into the plan.
    RankRoll roll;       ///< Counts the ends; from kFailed on, the announcements.
    LoadState state = LoadState::kBegun;
    bool doomed = false;
    RankPatience::Stamp sent{};
    std::chrono::nanoseconds waits_since{0};  ///< A stamp of LoadPatience, from kSent on.
    bool expired = false;
    bool failed_undamaged = false;  ///< A rank failed for another reason than damage.
  };
  /// What a rank has reported about damage of a load.
  struct Damage {
    TransferId transfer;
    RankId rank;
    std::vector<DamagedSlot> slots;
  };

  /// A damaged slot that a rank found without a load.
  struct Scrubbed {
    RankId rank;
    DamagedSlot slot;
  };

  [[nodiscard]] static bool succeeded(const Load& load) {
    return load.roll.all_done() && !load.doomed;
  }
  [[nodiscard]] static std::size_t num_leases(const Load& load);
  void release(Load& load);
  /// Takes the slots away from the tier, and adds a line for the log.
  void withdraw(const Damage& damage);
  void withdraw(const Scrubbed& found);
  /// Makes the load fail. No device touches its memory any more.
  void fail(TransferId transfer, Load& load);
  void settle_end(TransferId transfer, FoldResult& result);
  void settle_announced(TransferId transfer, FoldResult& result);
  void note_end(const Load& load, TransferId transfer, recorder::LoadFate fate) {
    if (journal_ != nullptr) journal_->load_ended(load.owner.request, transfer, fate);
  }
  void plan_expiries(StepPlan& plan, const LoadPatience& load_patience);
  void plan_notices(StepPlan& plan, const RankPatience& patience);

  cpu_tier::Tier& tier_;
  RequestTable& requests_;
  DecisionJournal* journal_ = nullptr;
  std::uint32_t world_size_;
  std::map<TransferId, Load> loads_;
  std::vector<TransferId> begun_;
  std::vector<TransferId> cancels_;
  std::vector<TransferId> failed_;     ///< Loads in kFailed, in order.
  std::vector<TransferId> ended_;      ///< Ended since the last settling.
  std::vector<TransferId> announced_;  ///< Announced by all ranks since the last settling.
  std::vector<std::string> succeeded_;
  std::vector<Damage> damages_;     ///< Reported since the last settling.
  std::vector<Scrubbed> scrubbed_;  ///< Found since the last settling.
  DamageRecord damage_;
  std::vector<std::string> damage_lines_;
  /// Ids whose notices are on their way. The engine counts the ranks' announcements by id alone, so
  /// two notices of one id must not be on their way at once.
  std::unordered_set<std::string> announcing_;
  std::uint64_t num_loaded_ = 0;
  std::uint64_t num_failed_ = 0;
  std::uint64_t num_expired_ = 0;
  std::uint64_t num_stale_ = 0;
};

}  // namespace kvferry::connector
