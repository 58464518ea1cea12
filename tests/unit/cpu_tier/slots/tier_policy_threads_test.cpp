// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "tier_fixture.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace kvferry::cpu_tier {
namespace {

/// Offers, awaits, stores and leases runs of keys that other threads use too.
void serve(PlainTier& tier, std::uint64_t seed) {
  std::vector<OfferAnswer> answers(6);
  for (std::uint64_t i = 0; i < 2'000; ++i) {
    const std::vector<BlockKey> wanted = keys((i * seed) % 200, answers.size());
    tier.await(wanted);
    if (i % 3 == 0) tier.end_await(wanted);
    const PrefixHit hit = tier.lookup_prefix(wanted);
    if (auto held = tier.lease(std::span(wanted).first(hit.size())); held.ok()) {
      tier.release(std::move(held).value());
    }
    tier.offer(wanted, answers);
    std::vector<BlockKey> admitted;
    for (std::size_t k = 0; k < wanted.size(); ++k) {
      if (answers[k] == OfferAnswer::kStore) admitted.push_back(wanted[k]);
    }
    if (admitted.empty()) continue;
    if (auto reserved = tier.reserve(admitted); reserved.ok()) {
      tier.commit(std::move(reserved).value().hand_over());
    }
    static_cast<void>(tier.snapshot());
    static_cast<void>(tier.rule_name());
  }
}

TEST(TierPolicyThreads, OffersOfManyThreadsLeaveTheTierWhole) {
  for (const TierOptions& options :
       {TierOptions{}, TierOptions{Eviction::kArc, Admission::kAdaptive}}) {
    PlainTier tier(64, options);
    tier.grow_to(64);
    std::vector<std::thread> threads;
    for (const std::uint64_t seed : {1U, 7U, 13U}) {
      threads.emplace_back([&tier, seed] { serve(tier, seed); });
    }
    for (std::thread& thread : threads) thread.join();
    tier.check_invariants();
    EXPECT_TRUE(tier.snapshot().conserved());
  }
}

}  // namespace
}  // namespace kvferry::cpu_tier
