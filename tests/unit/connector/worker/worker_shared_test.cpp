// SPDX-License-Identifier: Apache-2.0
// Ranks whose arenas are in a tier that engines share.
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/cpu_tier/peers/tier_report.hpp"

#include "complaint.hpp"
#include "worker_fixture.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <unistd.h>

namespace kvferry::connector {
namespace {

class WorkerSharedTest : public WorkerTest {
 protected:
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 10U;
  static constexpr std::uint32_t kNumChunks = 16;

  ~WorkerSharedTest() override { ::unlink(path_.c_str()); }

  [[nodiscard]] cpu_tier::SharedTierOptions tier() const {
    return {.path = path_,
            .capacity_bytes = 2 * kNumChunks * kChunkBytes,
            .num_ranks = 2,
            .chunk_bytes = kChunkBytes};
  }
  void start_engine(const std::string& instance, std::uint32_t slots_per_chunk = 60,
                    std::uint32_t num_chunks = kNumChunks) {
    Setup setup;
    setup.num_slots = num_chunks;
    setup.slots_per_chunk = {slots_per_chunk};
    setup.shared = SharedTierWish{tier(), instance};
    start(setup);
  }

  const std::string path_ = "/dev/shm/kvferry_worker_test_" + std::to_string(::getpid());
};

TEST_F(WorkerSharedTest, WhatOneEngineStoredAnotherLoads) {
  const auto held = cpu_tier::SharedTier::make_or_open(tier());
  start_engine("a");
  EXPECT_NE(engine_->arena_text().find("; in " + path_), std::string::npos);
  for (std::uint32_t block = 0; block < 4; ++block) {
    write(block, static_cast<std::uint8_t>(block + 1));
  }
  StepPlan plan = next_plan();
  // On both sides of a chunk's end, where its slots leave some bytes.
  plan.stores = {store(1, pairs(0, 58, 4))};
  bind_and_save(plan);
  collect_ends(1, 0);

  start_engine("b");
  plan = next_plan();
  plan.loads = {load(2, pairs(8, 58, 4))};
  bind_and_save(plan);
  collect_ends(1, 1);
  for (std::uint32_t block = 0; block < 4; ++block) {
    expect_content(8 + block, static_cast<std::uint8_t>(block + 1));
  }
}

TEST_F(WorkerSharedTest, ItsLifeIsSeenAndNothingIsLeftBehindIt) {
  start_engine("a");
  EXPECT_THROW(cpu_tier::remove_tier(path_), ResourceError);
  engine_.reset();
  EXPECT_NE(::access(path_.c_str(), F_OK), 0);
}

TEST_F(WorkerSharedTest, BlocksThatDoNotFitIntoAChunkAreRefused) {
  try {
    start_engine("a", 513);
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 needs chunks of 65664 bytes"),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("has chunks of 65536;"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(start_engine("a", 60, 15), ConfigError);
}

TEST_F(WorkerSharedTest, OneMemoryForRanksWithTheSameKvCacheIsRefused) {
  Setup setup;
  setup.num_slots = kNumChunks;
  setup.slots_per_chunk = {60};
  setup.shared = SharedTierWish{tier(), "a"};
  setup.replicas = {.name = "engine", .size = 2, .index = 0};
  expect_named(complaint_of<ConfigError>([&] { start(setup); }),
               {path_, "share_replicated_kv: false"});
}

}  // namespace
}  // namespace kvferry::connector
