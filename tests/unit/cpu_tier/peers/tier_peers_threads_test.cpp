// SPDX-License-Identifier: Apache-2.0
// Instances of one shared tier at work at the same time: what anybody reads is what was stored
// under its key, and in the end no slot is missing.
#include "shared_worker.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <thread>

namespace kvferry::cpu_tier {
namespace {

constexpr int kNumInstances = 3;
constexpr int kNumSteps = 4000;
TEST(TierPeersThreads, EverybodyReadsWhatWasStoredAndNoSlotIsLost) {
  const SharedTierRig rig(Instance::kShape);
  std::atomic<std::uint64_t> num_read{0};
  std::atomic<std::uint64_t> num_foreign{0};
  {
    std::vector<std::jthread> threads;
    for (int number = 0; number < kNumInstances; ++number) {
      threads.emplace_back([&, number] {
        SharedWorker worker(rig, number);
        for (int step = 0; step < kNumSteps; ++step) worker.step();
        EXPECT_TRUE(worker.all_right());
        num_read += worker.num_read();
        num_foreign += worker.num_foreign();
      });
    }
  }
  EXPECT_GT(num_read, 0U);
  EXPECT_GT(num_foreign, 0U) << "nobody read what another had stored";
  expect_no_slot_is_lost(rig);
}

// By its owner or by a reader, while its owner evicts, forgets, gives its chunk up or leaves.
TEST(TierPeersThreads, WhatIsWithdrawnIsNeverFilledAgain) {
  const SharedTierRig rig(Instance::kShape);
  SharedWorker::Withdrawn withdrawn{0};
  for (int life = 0; life < 3; ++life) {
    std::vector<std::jthread> threads;
    for (int number = 0; number < kNumInstances; ++number) {
      threads.emplace_back([&, number] {
        SharedWorker worker(rig, number, &withdrawn);
        for (int step = 0; step < kNumSteps / 3; ++step) worker.step();
        EXPECT_TRUE(worker.all_right());
      });
    }
  }
  EXPECT_GE(std::popcount(withdrawn.load()), SharedWorker::kMostWithdrawn);
  expect_no_slot_is_lost(rig, withdrawn.load());
}

}  // namespace
}  // namespace kvferry::cpu_tier
