// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/recorder/recorder.hpp"

#include "plan_oracle.hpp"
#include "toy_pool.hpp"
#include "toy_rank.hpp"
#include "toy_request.hpp"
#include "toy_totals.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvferry::connector {

/// An engine in miniature around one SchedulerEngine and two ranks: a block pool with a prefix
/// cache, chunked prefill, decoding, preemption, aborts, reuse of ids at any time, resets, of
/// running requests too, streaming sessions that take hashes back; and with `lag` 1 asynchronous
/// scheduling: a step is planned before the output of the one before it was seen. A third of the
/// seeds has KV cache groups with sliding windows, a quarter loses a rank. It follows vLLM where
/// the order of calls matters. Every token's KV is checked in every step that reads it. In a third
/// of the seeds both ranks have the same KV and keep one copy of it.
///
/// toy_engine.cpp: its making, and steps; _events: what happens before a step; _schedule: what a
/// step computes; _output: what comes back, and the end; _session: sessions and resets of running
/// requests; _lost: a rank that is lost and found.
class ToyEngine {
 public:
  /// Its scheduler side is recorded.
  explicit ToyEngine(std::uint64_t seed);
  [[nodiscard]] const recorder::Recorder& recorder() const { return *recorder_; }

  /// One engine step with random events before it.
  void step();
  [[nodiscard]] bool loses_a_rank() const { return loses_a_rank_; }
  /// A rank stops at once, the scheduler side gives it up, and it comes back.
  void lose_a_rank();
  /// No new requests; ends when nothing is left anywhere, and checks that.
  void drain();
  /// To be called after drain(): each rank has recorded the plans that the others have, and an end
  /// of everything in them.
  void expect_ranks_recorded() const;
  [[nodiscard]] ToyTotals totals() const;

 private:
  void make_ranks(const std::vector<std::uint32_t>& slots_per_chunk, std::uint64_t seed);
  struct Scheduled {
    ToyRequest* request = nullptr;  ///< Until the step's ranks are done.
    std::uint64_t uid = 0;
    std::uint32_t num_restarts = 0;  ///< Of the request, then.
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    bool samples = false;
    bool whole_table = false;
    std::vector<ToyTable> new_blocks;  ///< By group.
  };
  struct RankOutput {
    std::vector<std::string> announced;
    std::string report;
  };
  /// What comes back from one step.
  struct Output {
    std::vector<Scheduled> scheduled;
    std::vector<RankOutput> ranks;
  };
  /// The prefix that the engine has itself, by group; null where the window does not reach.
  struct Local {
    std::uint32_t num_blocks = 0;
    std::vector<ToyTable> tables;
  };
  /// A loading incarnation whose id the engine has given to another request, which it forgets but
  /// for the blocks.
  struct Orphan {
    std::string id;
    std::vector<ToyTable> tables;
  };
  struct RankState {
    bool dead = false;  ///< Executes nothing.
    bool mute = false;  ///< Reports nothing.
    std::uint64_t silent_until = 0;
    std::deque<std::string> missed;  ///< Plans that a dead rank still has to execute.
  };

  [[nodiscard]] std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(random_() % bound);
  }
  [[nodiscard]] bool one_in(std::uint32_t bound) { return below(bound) == 0; }

  // Events.
  void events();
  void arrive();
  /// What its client wants at most, and says of blocks.
  void draw_limits(ToyRequest& request);
  void draw_hints(const ToyRequest& request);
  /// Which of its blocks it wants stored, as far as they are known.
  void note_wanted(const ToyRequest& request);
  void check_wanted(const StepPlan& plan) const;
  void abort(ToyRequest& request);
  void reset();
  void reset_running();
  void end_turn(ToyRequest& request);
  void begin_turn(ToyRequest& request);
  void preempt_before_its_last_sample();
  void orphan(ToyRequest& request);
  void finish_in_step(const std::vector<Scheduled>& scheduled, PlanOracle::Step& step);

  // Scheduling.
  [[nodiscard]] bool is_window(std::size_t group) const { return !groups_[group].reach.is_all(); }
  /// The first of `length` blocks that the next token sees.
  [[nodiscard]] std::uint32_t first_needed(std::size_t group, std::uint32_t length) const;
  void schedule_running(std::vector<Scheduled>& scheduled, std::uint32_t& budget);
  void schedule_waiting(std::vector<Scheduled>& scheduled, std::uint32_t& budget);
  /// False if it has to wait.
  bool admit(ToyRequest& request, std::vector<Scheduled>& scheduled, std::uint32_t& budget);
  /// Blocks of a load behind the local ones, 0: none. Or nothing: there is no room.
  [[nodiscard]] std::optional<std::uint32_t> choose_load(ToyRequest& request, const Local& local);
  void begin_load(ToyRequest& request, const Local& local, std::uint32_t count, bool reset_first);
  void compute(ToyRequest& request, std::uint32_t count, bool whole_table,
               std::vector<ToyTable> new_blocks, std::vector<Scheduled>& scheduled);
  [[nodiscard]] Local local_prefix(ToyRequest& request);
  [[nodiscard]] std::uint32_t num_idle(const std::vector<ToyTable>& tables) const;
  /// Takes the local blocks that a request of `length` blocks still sees.
  void take_local(ToyRequest& request, const Local& local, std::uint32_t length);
  [[nodiscard]] std::uint32_t allocate();
  /// Blocks that the tables lack for `length` positions in every group; and takes them.
  [[nodiscard]] std::uint32_t num_missing(const std::vector<ToyTable>& tables,
                                          std::uint32_t length) const;
  std::vector<ToyTable> extend(std::vector<ToyTable>& tables, std::uint32_t length);
  /// Gives back what the next token does not see any more.
  void slide(ToyRequest& request);
  void cache_blocks(ToyRequest& request, std::uint32_t num_tokens);
  void preempt(ToyRequest& request);
  void release(const std::vector<ToyTable>& tables);

  // The step. Without a plan: the scheduler side has given a rank up, see timeout_.
  [[nodiscard]] std::optional<std::string> build(const std::vector<Scheduled>& scheduled);
  [[nodiscard]] std::uint64_t uid_of(const LoadOrder& order);
  [[nodiscard]] RankOutput execute(std::uint32_t rank, const std::vector<Scheduled>& scheduled,
                                   const std::string& plan);
  void read_and_write(std::uint32_t rank, const Scheduled& work);
  [[nodiscard]] RankOutput collect(std::uint32_t rank);
  /// Now and then a rank finds some blocks damaged of a load that has ended well.
  void damage(StepReport& report);

  // Output.
  void process(const Output& output);
  void process_outputs(std::size_t num_left);
  void take_samples(const std::vector<Scheduled>& scheduled);
  /// Of each rank's announcements the engine only counts how many there are of an id.
  [[nodiscard]] std::vector<std::string> count_announcements(const Output& output);
  void fail_announced(const std::vector<PlanOracle::Told>& announced);
  void fold(const std::vector<std::span<const std::byte>>& reports,
            const std::vector<PlanOracle::Told>& announced);
  void finish_load(const std::string& id);
  void check_loaded(ToyRequest& request);
  /// All that is known of the request was loaded: its last token is computed again, for its logits.
  void step_back(ToyRequest& request);
  void finish(ToyRequest& request);
  void forget(ToyRequest& request);
  [[nodiscard]] bool has_session() const;
  [[nodiscard]] ToyRequest* find(const std::string& id);
  [[nodiscard]] ToyRequest* find(std::uint64_t uid);

  // A lost rank.
  /// A step that computes nothing; false if there was no plan.
  bool idle_step();
  void settle_without(std::uint32_t lost);
  void expect_given_up(std::uint32_t lost);
  void recover(std::uint32_t lost);

  std::mt19937_64 random_;
  /// Apart, so that older seeds draw what they drew.
  std::mt19937_64 client_random_;
  std::mt19937_64 damage_random_;
  bool loses_a_rank_;
  std::vector<KvGroup> groups_;
  std::uint32_t num_blocks_;
  std::uint32_t lag_;
  std::uint32_t chunk_;
  bool recompute_failed_;
  bool is_replicated_;
  bool is_resized_;
  /// How its ranks' memory or links fail.
  enum class Damage : std::uint8_t { kNone, kRare, kLasting };
  Damage damage_;
  std::uint32_t num_loads_ended_ = 0;                            ///< Well, on a rank.
  std::map<TransferId, std::vector<DamagedSlot>> loaded_slots_;  ///< Of every load.
  std::uint64_t epoch_ = 1;
  std::uint64_t last_uid_ = 0;
  std::chrono::steady_clock::time_point now_;
  std::chrono::nanoseconds long_step_{0};  ///< What each idle step takes more.
  ToyPool pool_;
  std::vector<std::unique_ptr<ToyRank>> ranks_;
  std::vector<RankState> rank_states_{2};
  PlanOracle oracle_;
  std::uint32_t most_chunks_ = 0;  ///< Of a tier that is resized.
  std::unique_ptr<recorder::Recorder> recorder_;
  std::unique_ptr<SchedulerEngine> scheduler_;
  std::list<ToyRequest> requests_;
  std::vector<ToyRequest*> running_;
  std::deque<ToyRequest*> waiting_;
  std::set<std::string> preempted_;
  std::deque<Output> outputs_;
  std::map<std::string, std::uint32_t> num_announced_;
  std::map<std::uint64_t, Orphan> orphans_;
  std::vector<std::uint64_t> begun_;             ///< Loads that no plan has sent.
  std::vector<std::uint64_t> finished_in_step_;  ///< Their blocks are kept until the step is over.
  bool may_time_out_ = false;
  std::string timeout_;
  std::set<std::vector<std::byte>> wanted_;  ///< Hashes that some request has wanted stored.
  ToyTotals totals_;
};

}  // namespace kvferry::connector
