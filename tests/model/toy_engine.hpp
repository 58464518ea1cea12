// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler_engine.hpp"

#include "plan_oracle.hpp"
#include "toy_pool.hpp"
#include "toy_rank.hpp"
#include "toy_request.hpp"

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvferry::connector {

/// What happened, so that a run that tests nothing is noticed.
struct ToyTotals {
  std::uint64_t steps = 0;
  std::uint64_t loaded_blocks = 0;
  std::uint64_t failed_loads = 0;
  std::uint64_t aborted_loads = 0;
  std::uint64_t orphaned_loads = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t resets = 0;
  std::uint64_t early_blocks = 0;
  std::uint64_t stored = 0;
  std::uint64_t skipped_ring = 0;
  std::uint64_t skipped_exhausted = 0;
  std::uint64_t skipped_reallocated = 0;
  std::uint64_t failed_stores = 0;
  std::uint64_t evicted = 0;

  void add(const ToyTotals& other);
};

/// An engine in miniature around one SchedulerEngine and two ranks: a block pool with a prefix
/// cache, chunked prefill, decoding, preemption, aborts, reuse of ids, resets; and with `lag` 1
/// asynchronous scheduling: a step is planned before the output of the one before it was seen. It
/// follows vLLM where the order of calls matters. Every token's KV is checked in every step that
/// reads it.
class ToyEngine {
 public:
  explicit ToyEngine(std::uint64_t seed);

  /// One engine step with random events before it.
  void step();
  /// No new requests; ends when nothing is left anywhere, and checks that.
  void drain();
  [[nodiscard]] ToyTotals totals() const;

 private:
  struct Scheduled {
    ToyRequest* request = nullptr;
    std::uint64_t uid = 0;
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    bool samples = false;
    bool whole_table = false;
    std::vector<std::uint32_t> new_blocks;
  };
  struct RankOutput {
    EndedLoads loads;
    std::string report;
  };
  /// What comes back from one step.
  struct Output {
    std::vector<Scheduled> scheduled;
    std::vector<RankOutput> ranks;
  };
  /// The engine's own count of reports, by id, over the ranks.
  struct Tally {
    std::uint32_t num_reports = 0;
    bool failed = false;
  };

  [[nodiscard]] std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(random_() % bound);
  }
  [[nodiscard]] bool one_in(std::uint32_t bound) { return below(bound) == 0; }

  // Events.
  void arrive();
  void abort(ToyRequest& request);
  void reset();

  // Scheduling.
  void schedule_running(std::vector<Scheduled>& scheduled, std::uint32_t& budget);
  void schedule_waiting(std::vector<Scheduled>& scheduled, std::uint32_t& budget);
  /// False if it has to wait.
  bool admit(ToyRequest& request, std::vector<Scheduled>& scheduled, std::uint32_t& budget);
  bool begin_load(ToyRequest& request, const std::vector<std::uint32_t>& local,
                  std::uint32_t count);
  void compute(ToyRequest& request, std::uint32_t count, bool whole_table,
               std::vector<std::uint32_t> new_blocks, std::vector<Scheduled>& scheduled);
  [[nodiscard]] std::vector<std::uint32_t> local_prefix(ToyRequest& request);
  [[nodiscard]] std::vector<std::uint32_t> allocate(std::uint32_t count);
  void cache_blocks(ToyRequest& request, std::uint32_t num_tokens);
  void preempt(ToyRequest& request);
  [[nodiscard]] StepPlan build(const std::vector<Scheduled>& scheduled, std::string& bytes);

  // The ranks.
  [[nodiscard]] RankOutput execute(std::uint32_t rank, const std::vector<Scheduled>& scheduled,
                                   const std::string& plan);

  // Output.
  void process(const Output& output);
  void take_samples(const std::vector<Scheduled>& scheduled);
  [[nodiscard]] std::vector<std::string> tally(const Output& output);
  void finish_load(const std::string& id, bool failed);
  void check_loaded(ToyRequest& request);
  void finish(ToyRequest& request);
  void forget(ToyRequest& request);
  [[nodiscard]] ToyRequest* find(const std::string& id);
  [[nodiscard]] ToyRequest* find(std::uint64_t uid);

  std::mt19937_64 random_;
  std::uint32_t num_blocks_;
  std::uint32_t lag_;
  std::uint32_t chunk_;
  bool recompute_failed_;
  std::uint64_t epoch_ = 1;
  std::uint64_t last_uid_ = 0;
  ToyPool pool_;
  std::vector<std::unique_ptr<ToyRank>> ranks_;
  PlanOracle oracle_;
  std::unique_ptr<SchedulerEngine> scheduler_;
  std::list<ToyRequest> requests_;
  std::vector<ToyRequest*> running_;
  std::deque<ToyRequest*> waiting_;
  std::set<std::string> preempted_;
  std::deque<Output> outputs_;
  std::map<std::string, Tally> tallies_;
  std::map<std::string, std::uint64_t> loading_uids_;
  /// Blocks of a loading incarnation whose id the engine has given to another request.
  std::map<std::uint64_t, std::vector<std::uint32_t>> orphans_;
  ToyTotals totals_;
};

}  // namespace kvferry::connector
