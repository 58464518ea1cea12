// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/tier_promises.hpp"

#include "measure/stopwatch.hpp"
#include "trace/replay.hpp"
#include "trace/used_tier.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

namespace kvferry::bench::trace {
namespace {

using cpu_tier::BlockKey;
using cpu_tier::Tier;
using cpu_tier::TierPromises;

class TierReplay {
 public:
  TierReplay(const Trace& trace, std::uint32_t capacity, const cpu_tier::TierOptions& options,
             HintStyle hints)
      : trace_(trace), used_(capacity, options), hints_(trace, hints) {}

  void await(std::size_t index) {
    take_keys(index);
    tier_.await(UsedTier::kOnly, request_);
  }

  void request(std::size_t index) {
    take_keys(index);
    const cpu_tier::PrefixHit hit = used_.lookup(request_);
    result_.num_loads += hit.size();
    result_.num_loaded_tokens += trace_.prefix_tokens(index, hit.size());
    used_.load(hit, hit.size());
    const std::uint64_t num_hits = used_.store(request_);
    result_.num_hits += num_hits;
    result_.num_misses += request_.size() - num_hits;
    result_.num_accesses += request_.size();
  }

  /// Gives the tier the hint from the client of the request that has just ended.
  void hint(std::size_t index) {
    const Hint hint = hints_.after(index);
    const std::span<const std::uint32_t> blocks = trace_.request(index);
    if (blocks.empty()) return;
    // A conversation that goes on gets its new promise before the old one ends, so that the blocks
    // that it keeps are promised all the time.
    if (hint == Hint::kRetain) {
      TierPromises(tier_).promise(UsedTier::kOnly, request_);
      ends_.emplace(index + hints_.time_to_live(), index);
    }
    for (const std::uint32_t block : blocks) {
      if (const auto promised = promised_.find(block); promised != promised_.end()) {
        end_promise(promised->second);
      }
    }
    if (hint == Hint::kRetain) promised_[blocks.back()] = index;
    if (hint == Hint::kDemote) {
      take_keys(index);
      TierPromises(tier_).leave_early(UsedTier::kOnly, request_);
    }
    while (!ends_.empty() && ends_.begin()->first <= index) {
      const std::size_t over = ends_.begin()->second;
      ends_.erase(ends_.begin());
      const auto promised = promised_.find(trace_.request(over).back());
      if (promised != promised_.end() && promised->second == over) end_promise(over);
    }
  }

  ReplayResult result() const {
    ReplayResult result = result_;
    const cpu_tier::TierSnapshot now = tier_.snapshot();
    result.num_stores = now.num_committed_total;
    result.num_evictions = now.num_evicted_total;
    result.num_resident = std::uint64_t{now.num_evictable} + now.num_leased;
    result.num_rule_switches = now.num_rule_switches_total;
    result.num_won = now.num_won_total;
    result.num_lost = now.num_lost_total;
    return result;
  }

 private:
  void take_keys(std::size_t index) {
    request_.clear();
    for (const std::uint32_t block : trace_.request(index)) request_.push_back(key_of(block));
  }

  void end_promise(std::size_t index) {
    take_keys(index);
    TierPromises(tier_).end(UsedTier::kOnly, request_);
    promised_.erase(trace_.request(index).back());
  }

  const Trace& trace_;
  UsedTier used_;
  Tier& tier_ = used_.tier();
  std::vector<BlockKey> request_;
  ReplayResult result_;
  ClientHints hints_;
  std::map<std::uint32_t, std::size_t> promised_;  ///< Promised requests by their last blocks.
  std::multimap<std::size_t, std::size_t> ends_;   ///< When promises end -> their requests.
};

}  // namespace

ReplayResult replay_tier(const Trace& trace, std::uint32_t capacity,
                         const cpu_tier::TierOptions& options, std::uint32_t num_queued,
                         HintStyle hints) {
  TierReplay replay(trace, capacity, options, hints);
  const Stopwatch clock;
  for (std::size_t i = 0; i < std::min<std::size_t>(num_queued, trace.num_requests()); ++i) {
    replay.await(i);
  }
  for (std::size_t i = 0; i < trace.num_requests(); ++i) {
    if (num_queued > 0 && i + num_queued < trace.num_requests()) replay.await(i + num_queued);
    replay.request(i);
    if (hints != HintStyle::kNone) replay.hint(i);
  }
  const auto cpu = clock.cost().cpu;
  ReplayResult result = replay.result();
  result.seconds = std::chrono::duration<double>(cpu).count();
  return result;
}

}  // namespace kvferry::bench::trace
