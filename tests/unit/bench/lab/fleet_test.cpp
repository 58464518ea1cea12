// SPDX-License-Identifier: Apache-2.0
// Simulated fleets, compared with what a single tier does, and with figures worked out by hand.
#include "fleet/fleet_simulation.hpp"
#include "program.hpp"
#include "scratch_folder.hpp"
#include "trace/families.hpp"
#include "trace/replay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace kvferry::bench::fleet {
namespace {

using nlohmann::json;
using trace::Trace;
using Words = std::vector<std::string>;

FleetResult simulate(const Trace& requests, const FleetShape& shape, std::uint64_t seed = 1) {
  return simulate_fleet(requests, shape, seed, [](std::uint64_t, std::uint64_t) {});
}

FleetShape shape_of(std::uint32_t nodes, std::uint32_t blocks, Routing routing,
                    FarTier far_tier = FarTier::kNone) {
  FleetShape shape;
  shape.num_nodes = nodes;
  shape.tier_blocks = blocks;
  shape.routing = routing;
  shape.far_tier = far_tier;
  shape.time.block_bytes = 64 << 20;
  shape.far_gb_per_s = 10;
  return shape;
}

Trace family(const std::string& name) {
  const auto all = trace::families();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
  return found->make(1);
}

/// What a tier loads that never evicts anything.
std::uint64_t endless_tokens(const Trace& requests) {
  return trace::replay_tier(requests, requests.num_distinct(), cpu_tier::TierOptions{})
      .num_loaded_tokens;
}

// The smallest fleet is the tier that `kvferry-lab trace` replays.
TEST(FleetSimulation, ANodeAloneIsATier) {
  for (const char* const name : {"chat", "zipf+loop"}) {
    SCOPED_TRACE(name);
    const Trace requests = family(name);
    const trace::ReplayResult tier = trace::replay_tier(requests, 800, cpu_tier::TierOptions{});
    for (const Routing routing : {Routing::kRandom, Routing::kLeastLoaded, Routing::kKvAware}) {
      const FleetResult fleet = simulate(requests, shape_of(1, 800, routing));
      EXPECT_EQ(fleet.near_tokens, tier.num_loaded_tokens);
      EXPECT_EQ(fleet.near_loads, tier.num_loads);
      EXPECT_EQ(fleet.near_stores, tier.num_stores);
      EXPECT_EQ(fleet.computed_tokens, requests.num_tokens() - tier.num_loaded_tokens);
      EXPECT_EQ(fleet.far_loads + fleet.far_stores, 0U);
      EXPECT_DOUBLE_EQ(fleet.busiest_over_mean, 1);
    }
  }
}

// A far tier for everything, to which an engine turns for whatever its own tier lacks, loads what
// an endless tier would, whichever nodes the requests go to.
TEST(FleetSimulation, AFarTierThatHoldsEverythingIsAnEndlessTier) {
  const Trace requests = family("chat");
  for (const Routing routing : {Routing::kRandom, Routing::kKvAware}) {
    FleetShape shape = shape_of(16, 50, routing, FarTier::kBoth);
    shape.far_blocks = requests.num_distinct();
    const FleetResult fleet = simulate(requests, shape);
    EXPECT_EQ(fleet.near_tokens + fleet.far_tokens, endless_tokens(requests));
    EXPECT_EQ(fleet.far_stores, requests.num_distinct());
    EXPECT_GT(fleet.near_loads, 0U);
    EXPECT_GT(fleet.far_loads, 0U);
  }
}

// Of a chat, nearly every node's tier holds the system prompt. So a far tier that loads only
// prompts without any block in the node's tier loads few.
TEST(FleetSimulation, WhoIsAskedFirstDecidesWhatIsLoaded) {
  const Trace requests = family("chat");
  FleetShape shape = shape_of(8, 400, Routing::kRandom);
  shape.far_blocks = requests.num_distinct();
  const auto with = [&](FarTier far_tier) {
    shape.far_tier = far_tier;
    return simulate(requests, shape);
  };
  const FleetResult none = with(FarTier::kNone);
  const FleetResult tier_first = with(FarTier::kTierFirst);
  const FleetResult far_first = with(FarTier::kFarFirst);
  const FleetResult both = with(FarTier::kBoth);
  EXPECT_EQ(none.far_loads + none.far_stores, 0U);
  EXPECT_GT(tier_first.far_tokens, 0U);
  EXPECT_LT(2 * tier_first.far_tokens, both.far_tokens);
  EXPECT_EQ(far_first.far_tokens, endless_tokens(requests));
  EXPECT_EQ(far_first.near_tokens, 0U) << "the far tier has whatever a node's tier has";
  EXPECT_EQ(both.near_tokens + both.far_tokens, far_first.far_tokens);
  EXPECT_GT(both.near_tokens, 0U);
}

TEST(FleetSimulation, TenantsShareNothing) {
  const Trace requests = family("rag");
  FleetShape shape = shape_of(1, 3 * requests.num_distinct(), Routing::kRandom);
  shape.num_tenants = 3;
  const FleetResult fleet = simulate(requests, shape);
  EXPECT_EQ(fleet.num_requests, 3 * requests.num_requests());
  EXPECT_EQ(fleet.near_tokens, 3 * endless_tokens(requests));
  EXPECT_EQ(fleet.near_stores, 3U * requests.num_distinct());
}

TEST(FleetSimulation, ARouterThatKnowsTheTiersLoadsMoreAndAnswersSooner) {
  for (const char* const name : {"chat", "agents", "sessions-300"}) {
    SCOPED_TRACE(name);
    const Trace requests = family(name);
    const FleetResult blind = simulate(requests, shape_of(8, 400, Routing::kRandom));
    const FleetResult aware = simulate(requests, shape_of(8, 400, Routing::kKvAware));
    EXPECT_GT(aware.near_tokens, blind.near_tokens);
    EXPECT_LT(aware.ttft_mean_s, blind.ttft_mean_s);
  }
}

TEST(FleetSimulation, TheLeastLoadedNodeKeepsQueuesShorterThanChance) {
  const Trace requests = family("one-shot");
  const FleetResult random = simulate(requests, shape_of(8, 400, Routing::kRandom));
  const FleetResult least = simulate(requests, shape_of(8, 400, Routing::kLeastLoaded));
  EXPECT_LT(least.ttft_mean_s, random.ttft_mean_s);
  EXPECT_LT(least.ttft_p99_s, random.ttft_p99_s);
  EXPECT_EQ(least.computed_tokens, random.computed_tokens) << "nothing comes again";
}

// A prompt of 1,000 tokens in two blocks takes 1 s to compute. A block takes 1 s from the node's
// own tier, and 2 s from the far one.
TEST(FleetSimulation, TimesAreThoseWorkedOutByHand) {
  Trace requests("two", 512);
  for (int i = 0; i < 2; ++i) requests.add_request(std::vector<std::uint32_t>{0, 1}, 1'000);
  FleetShape shape = shape_of(1, 2, Routing::kRandom);
  shape.time.block_bytes = 1'000'000'000;
  shape.time.link_gb_per_s = 1;
  shape.time.prefill_tokens_per_second = 1'000;
  shape.far_gb_per_s = 0.5;
  shape.offered_load = 1e-6;  // The second comes long after the first.
  FleetResult fleet = simulate(requests, shape);
  EXPECT_NEAR(fleet.ttft_mean_s, (1 + 2) / 2.0, 1e-6);
  EXPECT_NEAR(fleet.ttft_p99_s, 2, 1e-6);
  // The node's tier has room for one block.
  shape.tier_blocks = 1;
  shape.far_tier = FarTier::kBoth;
  shape.far_blocks = 2;
  fleet = simulate(requests, shape);
  EXPECT_EQ(fleet.near_tokens, 512U);
  EXPECT_EQ(fleet.far_tokens, 1'000U - 512);
  EXPECT_NEAR(fleet.ttft_p99_s, 1 + 2, 1e-6);
  // Both at once: the second waits for the first, and computes what its tier lacks.
  shape.far_tier = FarTier::kNone;
  shape.offered_load = 1e9;
  fleet = simulate(requests, shape);
  EXPECT_NEAR(fleet.ttft_p99_s, 1 + 0.488, 1e-6);
}

TEST(FleetSimulation, TheSameSeedGivesTheSame) {
  const Trace requests = family("chat");
  const FleetShape shape = shape_of(4, 200, Routing::kKvAware);
  const FleetResult once = simulate(requests, shape, 7);
  const FleetResult again = simulate(requests, shape, 7);
  const FleetResult other = simulate(requests, shape, 8);
  EXPECT_EQ(once.near_tokens, again.near_tokens);
  EXPECT_EQ(once.ttft_mean_s, again.ttft_mean_s);
  EXPECT_NE(once.ttft_mean_s, other.ttft_mean_s);
}

TEST(FleetProgram, ARowForEachCombination) {
  const auto [run, report] = run_for_report(
      {"fleet", "--traffic", "chat", "--nodes", "1,4", "--routing", "random,kv_aware", "--far-tier",
       "none,both", "--capacity", "100,200", "--nodes-per-tenant", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(report.at("rows").size(), 2U * 2 * 2 * 2);
  for (const json& row : report.at("rows")) {
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_EQ(row.at("traffic"), "chat");
    EXPECT_EQ(row.at("far_capacity_gb").is_null(), row.at("far_tier") == "none") << row;
    EXPECT_NEAR(row.at("near_percent").get<double>() + row.at("far_percent").get<double>(),
                row.at("loaded_percent").get<double>(), 1e-9);
  }
  EXPECT_EQ(report.at("rows").at(0).at("nodes"), 1);
  EXPECT_EQ(report.at("rows").at(15).at("nodes"), 4);
  EXPECT_TRUE(says(run.out, "a tenant for every 2 nodes")) << run.out;
}

TEST(FleetProgram, AWrongCountIsOneAndIsReported) {
  const auto [run, report] =
      run_for_report({"fleet", "--traffic", "rag", "--quick", "--routing", "random", "--far-tier",
                      "none", "--corrupt-round", "1"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(says(report.at("mismatch"), "family, 8 nodes, random: requests: 12001 instead"))
      << report.at("mismatch");
}

TEST(FleetProgram, BadUsageIsTwoWithAHint) {
  const std::vector<std::pair<Words, std::string>> bad = {
      {{}, "needs a FILE"},
      {{"--traffic", "chat", "--routing", "sticky"}, "write random, least_loaded or kv_aware"},
      {{"--traffic", "chat", "--far-tier", "all"}, "write none, tier_first, far_first or both"},
      {{"--traffic", "chat", "--nodes", "0"}, "--nodes"},
      {{"--traffic", "chat", "--load", "1"}, "--load"},
  };
  for (const auto& [arguments, part] : bad) {
    const ProgramRun run = run_program(joined({"fleet"}, arguments));
    EXPECT_EQ(run.exit_code, 2) << part;
    EXPECT_TRUE(says(run.err, part)) << part << ": " << run.err;
  }
}

}  // namespace
}  // namespace kvferry::bench::fleet
