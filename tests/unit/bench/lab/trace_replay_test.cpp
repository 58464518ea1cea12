// SPDX-License-Identifier: Apache-2.0
#include "lab/public_trace.hpp"
#include "measure/verifier.hpp"
#include "trace/check_replay.hpp"
#include "trace/families.hpp"
#include "trace/policies.hpp"
#include "trace/replay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace kvferry::bench::trace {
namespace {

using cpu_tier::Admission;
using cpu_tier::Eviction;
using cpu_tier::TierOptions;

constexpr TierOptions kLru{Eviction::kLru, Admission::kAlways};

Trace make_trace(const std::vector<std::vector<std::uint32_t>>& requests) {
  Trace trace("test");
  for (const auto& request : requests) trace.add_request(request);
  return trace;
}

/// A few hundred requests with reuse, the same in every run.
Trace busy_trace() {
  Trace trace("busy");
  std::uint32_t next = 100;
  for (std::uint32_t i = 0; i < 600; ++i) {
    std::vector<std::uint32_t> request;
    for (std::uint32_t k = 0; k < 1 + i * 7 % 5; ++k) request.push_back(i * 13 % 23 * 4 + k % 4);
    std::sort(request.begin(), request.end());
    request.erase(std::unique(request.begin(), request.end()), request.end());
    for (std::uint32_t k = 0; k < i % 4; ++k) request.push_back(next++);
    trace.add_request(request);
  }
  return trace;
}

TEST(ReplayTier, CountsHitsLoadsStoresAndEvictions) {
  // The second request finds 0 and 1, and 3 behind the missing 2.
  const Trace trace = make_trace({{0, 1}, {3}, {0, 1, 2, 3}, {5, 6, 7}});
  const ReplayResult result = replay_tier(trace, 4, kLru);
  EXPECT_EQ(result.num_accesses, 10U);
  EXPECT_EQ(result.num_hits, 3U);
  EXPECT_EQ(result.num_loads, 2U);
  EXPECT_EQ(result.num_stores, 7U);
  EXPECT_EQ(result.num_evictions, 3U);
  EXPECT_EQ(result.num_misses, 7U);
  EXPECT_EQ(result.num_resident, 4U);
  EXPECT_EQ(result.num_loaded_tokens, 2U * 512);
}

TEST(ReplayTier, LoadsNoMoreTokensThanThePromptHas) {
  Trace trace("test", 16);
  for (int i = 0; i < 3; ++i) trace.add_request(std::vector<std::uint32_t>{0, 1, 2}, 40);
  EXPECT_EQ(replay_tier(trace, 4, kLru).num_loaded_tokens, 2U * 40);
  EXPECT_EQ(replay_reference(trace, 4, Reference::kS3Fifo).num_loaded_tokens, 2U * 40);
}

TEST(ReplayTier, RequestLargerThanTheTierStoresItsHead) {
  const Trace trace = make_trace({{0, 1, 2, 3, 4, 5}, {0, 1, 2}});
  const ReplayResult result = replay_tier(trace, 4, kLru);
  EXPECT_EQ(result.num_stores, 4U);
  EXPECT_EQ(result.num_loads, 3U);
}

TEST(ReplayTier, LruIsThatOfAPlainList) {
  const Trace trace = busy_trace();
  for (const std::uint32_t capacity : {20U, 45U, 90U}) {
    std::list<std::uint32_t> lru;  // Coldest first.
    std::uint64_t hits = 0;
    for (std::size_t i = 0; i < trace.num_requests(); ++i) {
      const auto request = trace.request(i);
      std::vector<std::uint32_t> missing;
      for (std::size_t k = request.size(); k-- > 0;) {
        const auto found = std::find(lru.begin(), lru.end(), request[k]);
        if (found == lru.end()) {
          missing.insert(missing.begin(), request[k]);
          continue;
        }
        ++hits;
        lru.splice(lru.end(), lru, found);
      }
      while (lru.size() + missing.size() > capacity) lru.pop_front();
      // Right behind the block before the first of them.
      auto place = lru.end();
      if (!missing.empty() && missing[0] != request[0]) {
        const auto before = std::find(request.begin(), request.end(), missing[0]) - 1;
        place = std::find(lru.begin(), lru.end(), *before);
      }
      for (const std::uint32_t block : missing) place = lru.insert(place, block);
    }
    EXPECT_EQ(replay_tier(trace, capacity, kLru).num_hits, hits);
  }
}

TEST(ReplayTier, KnowingTheQueueOnlyHelps) {
  const Trace trace = families()[9].make(3);
  const auto hits = [&](std::uint32_t num_queued) {
    return replay_tier(trace, 1'000, kLru, num_queued).num_hits;
  };
  EXPECT_GT(hits(16), hits(0));
}

/// Of all requests, one after the other.
std::vector<std::uint32_t> all_blocks(const Trace& trace) {
  std::vector<std::uint32_t> all;
  for (std::size_t i = 0; i < trace.num_requests(); ++i) {
    all.insert(all.end(), trace.request(i).begin(), trace.request(i).end());
  }
  return all;
}

/// The most hits that any choice of victims gives: all of them are tried.
std::uint64_t most_hits(const Trace& trace, std::uint32_t capacity) {
  std::set<std::pair<std::set<std::uint32_t>, std::uint64_t>> states{{{}, 0}};
  for (const std::uint32_t block : all_blocks(trace)) {
    decltype(states) after;
    for (const auto& [held, hits] : states) {
      if (held.contains(block)) {
        after.emplace(held, hits + 1);
        continue;
      }
      if (held.size() < capacity) {
        auto more = held;
        more.insert(block);
        after.emplace(more, hits);
        continue;
      }
      for (const std::uint32_t victim : held) {
        auto other = held;
        other.erase(victim);
        other.insert(block);
        after.emplace(other, hits);
      }
    }
    states = std::move(after);
  }
  std::uint64_t most = 0;
  for (const auto& [held, hits] : states) most = std::max(most, hits);
  return most;
}

TEST(ReplayReference, OptimumIsTheMostThatAnyChoiceGives) {
  std::vector<std::vector<std::uint32_t>> requests;
  for (std::uint32_t i = 0; i < 22; ++i) requests.push_back({i * i % 7, 7 + i * 5 % 3});
  const Trace trace = make_trace(requests);
  for (const std::uint32_t capacity : {2U, 3U, 4U}) {
    EXPECT_EQ(replay_reference(trace, capacity, Reference::kOptimum).num_hits,
              most_hits(trace, capacity));
  }
}

TEST(ReplayReference, NobodyBeatsTheOptimumWhoMustStoreWhatIsMissed) {
  for (const Trace& trace : {busy_trace(), families()[12].make(5)}) {
    const std::uint64_t most = replay_reference(trace, 300, Reference::kOptimum).num_hits;
    for (const Reference policy : {Reference::kS3Fifo, Reference::kSieve}) {
      const ReplayResult result = replay_reference(trace, 300, policy);
      EXPECT_LE(result.num_hits, most);
      EXPECT_GE(result.num_stores + result.num_hits, result.num_accesses);
    }
    EXPECT_LE(replay_tier(trace, 300, kLru).num_hits, most);
  }
}

// Popularity, a loop, and conversations among one-shot prompts; all kinds are in
// docs/decisions/policies.md.
TEST(ReplayFamilies, DefaultIsNotBelowFixedPoliciesOnAnyKindOfTraffic) {
  for (const std::size_t which : {1U, 5U, 12U}) {
    const Family& family = families()[which];
    const Trace trace = family.make(2);
    const double adaptive = replay_tier(trace, kFamilyCapacity, {}).hit_percent();
    for (const Eviction eviction : {Eviction::kLru, Eviction::kArc}) {
      const TierOptions fixed{eviction, Admission::kAlways};
      EXPECT_GT(adaptive, replay_tier(trace, kFamilyCapacity, fixed).hit_percent() - 1)
          << family.name << ", " << to_string(eviction);
    }
  }
}

// A loop over three blocks.
TEST(ReplayReference, HitsOfATinyLoopAreThoseWorkedOutByHand) {
  const Trace trace = make_trace({{0, 1}, {2}, {0, 1}, {2}, {0, 1}});
  const auto hits = [&](const char* name, std::uint32_t capacity) {
    return policy_named(name).replay(trace, capacity, 0, HintStyle::kNone).num_hits;
  };
  // Three blocks in a tier of three: all but the first of each.
  for (const Policy& policy : policies()) {
    if (policy.name == "second-sight") continue;
    EXPECT_EQ(hits(policy.name.c_str(), 3), 5U) << policy.name;
  }
  // Stored at the second miss, hit from the third access on: 0 and 1 once.
  EXPECT_EQ(hits("second-sight", 3), 2U);
  // Two slots: LRU has lost the first of what comes next each time, and keeps the other one.
  EXPECT_EQ(hits("lru", 2), 2U);
  // The clairvoyant one gives up what comes last.
  EXPECT_EQ(hits("optimum", 2), 3U);
  EXPECT_EQ(hits("belady", 2), 3U);
  EXPECT_EQ(hits("optimum", 1), 0U);
}

/// Every policy on all kinds of trouble: tiers of one block, requests larger than the tier.
TEST(CheckReplay, CountsOfEveryPolicyAgree) {
  for (const std::uint32_t capacity : {1U, 2U, 7U, 45U, 100U, 2'000U}) {
    const Trace trace = busy_trace();
    for (const Policy& policy : policies()) {
      Verifier verifier(1);
      static_cast<void>(verifier.next_round());
      check_replay(verifier, trace, capacity, policy.replay(trace, capacity, 0, HintStyle::kNone),
                   policy.name);
      EXPECT_EQ(verifier.first_mismatch(), "");
    }
  }
}

TEST(CheckReplay, AWrongCountIsFound) {
  const Trace trace = make_trace({{0, 1}, {0, 1, 2}});
  const ReplayResult right = replay_tier(trace, 2, kLru);
  const auto mismatch = [&](const auto& spoil) {
    ReplayResult wrong = right;
    spoil(wrong);
    Verifier verifier(1);
    static_cast<void>(verifier.next_round());
    check_replay(verifier, trace, 2, wrong, "lru");
    return verifier.first_mismatch();
  };
  EXPECT_EQ(mismatch([](ReplayResult&) {}), "");
  EXPECT_EQ(mismatch([](ReplayResult& r) { ++r.num_accesses; }),
            "round 1: lru, 2 blocks: accesses: 6 instead of 5");
  EXPECT_NE(mismatch([](ReplayResult& r) { ++r.num_hits; }), "");
  EXPECT_NE(mismatch([](ReplayResult& r) { --r.num_misses; }), "");
  EXPECT_NE(mismatch([](ReplayResult& r) { ++r.num_stores; }), "");
  EXPECT_NE(mismatch([](ReplayResult& r) { ++r.num_evictions; }), "");
  EXPECT_NE(mismatch([](ReplayResult& r) { ++r.num_resident; }), "");
  EXPECT_NE(mismatch([](ReplayResult& r) { r.num_loads = r.num_hits + 1; }), "");
}

// Coarse, because a system prompt of four blocks has a tenth of all accesses.
TEST(ReplaySample, SaysRoughlyWhatTheWholeTraceWould) {
  const Trace trace = families()[8].make(3);
  const Trace sample = trace.sampled(0.25);
  EXPECT_NEAR(static_cast<double>(sample.num_distinct()), 0.25 * trace.num_distinct(),
              0.02 * trace.num_distinct());
  for (const std::uint32_t capacity : {1'000U, 3'000U}) {
    EXPECT_NEAR(replay_tier(sample, capacity / 4, kLru).load_percent(),
                replay_tier(trace, capacity, kLru).load_percent(), 10);
  }
}

TEST(ReplayEndless, LoadsAllThatCameBefore) {
  const Trace trace = make_trace({{0, 1, 2}, {0, 1, 3}, {4, 1}});
  const ReplayResult result = replay_endless(trace);
  EXPECT_EQ(result.num_hits, 3U);
  EXPECT_EQ(result.num_loads, 2U);
  EXPECT_EQ(result.num_stores, 5U);
}

TEST(ReplayFamilies, TheSameSeedIsTheSameTraffic) {
  for (const Family& family : families()) {
    const Trace one = family.make(4);
    const Trace same = family.make(4);
    ASSERT_EQ(all_blocks(one), all_blocks(same)) << family.name;
  }
}

// Its figures are those of other simulations.
TEST(ReplayMooncake, AgreesWithTheFiguresOfOthers) {
  const std::optional<Trace> found = public_trace();
  if (!found) GTEST_SKIP() << kNoPublicTrace;
  const Trace& trace = *found;
  ASSERT_EQ(trace.num_accesses(), 288'500U);
  ASSERT_EQ(trace.num_misfits(), 0U);
  struct Row {
    std::uint32_t capacity;
    double lru;
    double belady;
    double best;
  };
  for (const Row& row : {Row{3'000, 6.5, 29.4, 12.5}, Row{8'000, 17.8, 36.6, 19.5},
                         Row{16'000, 26.3, 36.6, 27.1}, Row{40'000, 35.1, 36.6, 35.1}}) {
    const ReplayResult lru = replay_tier(trace, row.capacity, kLru);
    const ReplayResult adaptive = replay_tier(trace, row.capacity, {});
    EXPECT_NEAR(lru.hit_percent(), row.lru, 0.1);
    EXPECT_NEAR(replay_reference(trace, row.capacity, Reference::kOptimum).hit_percent(),
                row.belady, 0.1);
    EXPECT_GT(adaptive.hit_percent(), row.best - 0.3);
    if (row.capacity == 3'000) {
      EXPECT_LT(adaptive.num_stores * 3, lru.num_stores);
    }
  }
}

}  // namespace
}  // namespace kvferry::bench::trace
