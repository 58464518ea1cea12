// SPDX-License-Identifier: Apache-2.0
#include "host/host_link_engine.hpp"

#include "host/host_context.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

namespace kvferry::gpu {
namespace {

TEST(HostLinkEngine, ServesWaitingCopiesByRankNotByArrival) {
  HostLinkEngine engine;
  Mutex mutex;
  std::vector<std::uint64_t> served;
  std::vector<std::thread> threads;
  {
    const auto turn = engine.enter(0);
    for (const std::uint64_t rank : {30U, 10U, 20U}) {
      const std::uint64_t num_before = engine.num_waiting();
      threads.emplace_back([&, rank] {
        const auto inner = engine.enter(rank);
        MutexLock lock(mutex);
        served.push_back(rank);
      });
      while (engine.num_waiting() == num_before) std::this_thread::yield();
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, (std::vector<std::uint64_t>{10, 20, 30}));
  EXPECT_EQ(engine.num_waiting(), 0U);
}

TEST(HostLinkEngine, LetsOneCopyPassAtATime) {
  HostLinkEngine engine;
  std::atomic<int> num_passing{0};
  std::atomic<int> num_collisions{0};
  std::vector<std::thread> threads;
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < 200; ++i) {
        const auto turn = engine.enter(rank % 2);
        if (++num_passing != 1) ++num_collisions;
        --num_passing;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_collisions, 0);
}

TEST(HostLinkEngine, KnowsItsFirstTurn) {
  HostLinkEngine engine;
  EXPECT_TRUE(engine.enter(2).is_first());
  EXPECT_FALSE(engine.enter(1).is_first());
}

TEST(HostLinkEngine, OneDirectionDoesNotWaitForTheOther) {
  HostContext context({}, {});
  const auto store = context.engine(CopyDirection::kDeviceToHost).enter(1);
  std::atomic<bool> passed{false};
  std::thread load([&] {
    const auto turn = context.engine(CopyDirection::kHostToDevice).enter(2);
    passed = true;
  });
  load.join();
  EXPECT_TRUE(passed);
}

}  // namespace
}  // namespace kvferry::gpu
