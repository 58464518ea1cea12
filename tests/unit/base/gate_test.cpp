// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/gate.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry {
namespace {

constexpr std::chrono::seconds kHang{120};
constexpr std::chrono::nanoseconds kNoTime{0};

TEST(Gate, CountsWhoIsInside) {
  Gate gate;
  EXPECT_EQ(gate.num_inside(), 0U);
  {
    const auto first = gate.enter();
    const auto second = gate.enter();
    ASSERT_TRUE(first.has_value() && second.has_value());
    EXPECT_EQ(gate.num_inside(), 2U);
  }
  EXPECT_EQ(gate.num_inside(), 0U);
}

TEST(Gate, RefusesNewHoldersOnceClosed) {
  Gate gate;
  EXPECT_FALSE(gate.closed());
  EXPECT_TRUE(gate.close(kNoTime));
  EXPECT_TRUE(gate.closed());
  EXPECT_FALSE(gate.enter().has_value());
  EXPECT_TRUE(gate.close(kNoTime)) << "closing again is legal";
}

TEST(Gate, CloseGivesUpAtItsBoundAndStaysClosed) {
  Gate gate;
  auto holder = gate.enter();
  EXPECT_FALSE(gate.close(std::chrono::milliseconds(1)));
  EXPECT_FALSE(gate.close(std::chrono::nanoseconds::min()));
  EXPECT_FALSE(gate.enter().has_value());
  holder.reset();
  EXPECT_TRUE(gate.close(kNoTime));
}

TEST(Gate, CloseWaitsForTheLastHolder) {
  Gate gate;
  auto holder = gate.enter();
  std::atomic<bool> left{false};
  std::thread worker([&left, inside = std::move(*holder)]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    left = true;
    const auto leaving = std::move(inside);
  });
  holder.reset();
  EXPECT_TRUE(gate.close(std::chrono::nanoseconds::max()));
  EXPECT_TRUE(left);
  worker.join();
}

TEST(Gate, MovedHolderLeavesOnce) {
  Gate gate;
  auto first = gate.enter();
  {
    const Gate::Holder moved = std::move(*first);
    EXPECT_EQ(gate.num_inside(), 1U);
    first.reset();
    EXPECT_EQ(gate.num_inside(), 1U) << "a holder moved from is not inside";
  }
  EXPECT_EQ(gate.num_inside(), 0U);
}

TEST(Gate, AssignedHolderLeavesItsOldGate) {
  Gate a;
  Gate b;
  auto in_a = a.enter();
  auto in_b = b.enter();
  *in_a = std::move(*in_b);
  EXPECT_EQ(a.num_inside(), 0U);
  EXPECT_EQ(b.num_inside(), 1U);
  in_a.reset();
  EXPECT_EQ(b.num_inside(), 0U);
}

TEST(Gate, NobodyIsInsideAfterCloseReturnedUnderContention) {
  for (int round = 0; round < 50; ++round) {
    Gate gate;
    std::atomic<int> num_inside{0};
    std::vector<std::thread> workers;
    for (int i = 0; i < 4; ++i) {
      workers.emplace_back([&] {
        while (auto holder = gate.enter()) {
          ++num_inside;
          --num_inside;
        }
      });
    }
    EXPECT_TRUE(gate.close(kHang));
    EXPECT_EQ(num_inside, 0);
    for (std::thread& worker : workers) worker.join();
  }
}

TEST(GateDeathTest, StopsWhenItDiesWithSomebodyInside) {
  EXPECT_DEATH(
      {
        std::optional<Gate::Holder> holder;
        Gate gate;
        holder = gate.enter();
      },
      "1 inside");
}

}  // namespace
}  // namespace kvferry
