// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena_growth.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "byte_sizes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <thread>

namespace kvferry::cpu_tier {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kNumSlots = 64;

class ArenaGrowthTest : public ::testing::Test {
 protected:
#ifdef KVFERRY_TEST_HOOKS
  ~ArenaGrowthTest() override { test_hooks::reset(); }
#endif

  static bool wait_for_end(const ArenaGrowth& growth) {
    for (const auto end = steady_clock::now() + seconds(60); steady_clock::now() < end;) {
      if (growth.ended()) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }

  std::unique_ptr<gpu::Device> device_ = gpu::make_host_device();
  Arena arena_{*device_,
               kMiB,
               kNumSlots,
               {.pinned_piece_bytes = 4 * kMiB,
                .max_registration_bytes = 16 * kMiB,
                .start = ArenaStart::kEmpty}};
};

TEST_F(ArenaGrowthTest, MakesAllSlotsReady) {
  const ArenaGrowth growth(arena_);
  ASSERT_TRUE(wait_for_end(growth));
  EXPECT_EQ(arena_.num_ready(), kNumSlots);
  EXPECT_EQ(growth.failure(), "");
  ASSERT_TRUE(growth.last_report());
  EXPECT_EQ(growth.last_report()->huge_page_share, arena_.report().huge_page_share);
}

TEST_F(ArenaGrowthTest, GoesOnFromWhatIsReadyAndGently) {
  EXPECT_EQ(arena_.grow(1), 4U);
  ArenaGrowth growth(arena_);
  growth.go_gently();
  ASSERT_TRUE(wait_for_end(growth));
  EXPECT_EQ(arena_.num_ready(), kNumSlots);
}

TEST_F(ArenaGrowthTest, ClosesPromptlyInAPause) {
  // A piece in a thousand seconds.
  ArenaGrowth growth(arena_, {.pinning_bandwidth_limit = 4 * kMiB / 1000});
  while (arena_.num_ready() == 0) std::this_thread::yield();
  growth.close();
  growth.close();
  EXPECT_TRUE(growth.ended());
  EXPECT_EQ(growth.failure(), "");
  EXPECT_FALSE(growth.last_report());
  EXPECT_EQ(arena_.num_ready(), 4U);
}

#ifdef KVFERRY_TEST_HOOKS
TEST_F(ArenaGrowthTest, AFailureIsKeptAndSoIsWhatWasReady) {
  test_hooks::fail_nth_of("arena.register", 2);
  const ArenaGrowth growth(arena_);
  ASSERT_TRUE(wait_for_end(growth));
  EXPECT_NE(growth.failure().find("on request of a test"), std::string::npos) << growth.failure();
  EXPECT_EQ(arena_.num_ready(), 4U);
}

TEST_F(ArenaGrowthTest, ClosesBetweenTwoSteps) {
  std::latch reached(1);
  std::latch closing(1);
  std::atomic<int> num_passages{0};
  test_hooks::on_pause("arena.growth", [&] {
    if (++num_passages != 2) return;
    reached.count_down();
    closing.wait();
  });
  ArenaGrowth growth(arena_);
  reached.wait();
  std::thread closer([&] { growth.close(); });
  std::this_thread::sleep_for(milliseconds(20));
  closing.count_down();
  closer.join();
  EXPECT_TRUE(growth.ended());
  // Whether the stop came before or behind the second step.
  EXPECT_TRUE(arena_.num_ready() == 4 || arena_.num_ready() == 12) << arena_.num_ready();
}
#endif

}  // namespace
}  // namespace kvferry::cpu_tier
