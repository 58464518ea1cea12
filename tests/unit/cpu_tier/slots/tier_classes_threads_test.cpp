// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "tier_fixture.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

/// Stores, leases and forgets blocks of a class, now few, now many.
void serve(Tier& tier, SlabClassId of, std::uint64_t seed) {
  for (std::uint64_t i = 0; i < 3'000; ++i) {
    const std::vector<BlockKey> wanted = keys((i * seed) % 97, 1 + i / 100 % 7 * 3);
    const PrefixHit hit = tier.lookup_prefix(of, wanted);
    auto held = tier.lease(of, std::span(wanted).first(hit.size()));
    if (auto reserved = tier.reserve(of, std::span(wanted).subspan(hit.size())); reserved.ok()) {
      tier.commit(std::move(reserved).value().hand_over());
    }
    if (held.ok()) tier.release(std::move(held).value());
    if (i % 100 == 0) static_cast<void>(tier.slab_snapshot());
  }
}

TEST(TierClassesThreads, ManyThreadsOfThreeClassesLeaveItWhole) {
  Tier tier(16, {});
  std::vector<SlabClassId> classes;
  for (const std::uint32_t slots : {1U, 5U, 16U}) classes.push_back(tier.add_class(slots));
  tier.grow_to(8);
  std::vector<std::thread> threads;
  for (const std::uint64_t seed : {1U, 7U, 13U, 29U}) {
    threads.emplace_back([&, seed] { serve(tier, classes[seed % 3], seed); });
  }
  threads.emplace_back([&] {
    for (std::uint32_t num_chunks = 9; num_chunks <= 16; ++num_chunks) tier.grow_to(num_chunks);
  });
  for (std::thread& thread : threads) thread.join();
  tier.check_invariants();
  std::uint32_t num_chunks = tier.slab_snapshot().num_free_chunks;
  for (const SlabClassSnapshot& one : tier.slab_snapshot().classes) {
    EXPECT_TRUE(one.tier.conserved());
    num_chunks += one.num_chunks;
  }
  EXPECT_EQ(num_chunks, 16U);
}

}  // namespace
}  // namespace kvferry::cpu_tier
