// SPDX-License-Identifier: Apache-2.0
// A rank that ends while a copy of its device does not.
#include "kvferry/base/error.hpp"
#include "kvferry/base/graveyard.hpp"

#include "unordered_byte.hpp"
#include "worker_fixture.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <string>

namespace kvferry::connector {
namespace {

using namespace std::chrono_literals;

class WorkerEndTest : public WorkerTest {
 protected:
  /// Of block 0 alone, which is one piece: of a load of more, the end of the worker may come before
  /// the later pieces do, and they are never copied then.
  void begin_a_load_that_is_held() {
    valve_.hold(Kind::kCopyH2D);
    StepPlan plan = next_plan();
    plan.loads.push_back(load(1, pairs(0, 0, 1)));
    bind_and_save(plan);
    await([&] { return valve_.num_arrived(Kind::kCopyH2D) > 0; });
  }
  bool ends() {
    auto end = std::async(std::launch::async, [this] { engine_.reset(); });
    const bool ended = end.wait_for(30s) == std::future_status::ready;
    if (!ended) valve_.open_all();
    return ended;
  }
  /// The engine's copy goes on: its device stays, and with it the blocks, which it holds.
  void keep_for_the_copy() { bury(std::move(device_)); }
};

// ASan watches: the copy that was held reads the arena after the engine is gone.
TEST_F(WorkerEndTest, ACopyThatDoesNotEndIsLeftBehindWithItsMemory) {
  start({.transfer_timeout = 50ms});
  write(0, 9);
  begin_a_load_that_is_held();
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(ends()) << "the end of a worker waits for a copy that does not end";
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("kept until the process ends"), std::string::npos) << said;
  const auto usage = gpu::host_device_usage(*device_);
  EXPECT_GE(usage.num_registrations, 1U);
  valve_.open_all();
  const auto first = reinterpret_cast<std::uintptr_t>(at(0, 0));
  await([first] { return gpu::unordered_byte(first) == 0; });
  keep_for_the_copy();
}

TEST_F(WorkerEndTest, AWorkerThatWasClosedInVainDoesNotWaitAgain) {
  start({.transfer_timeout = 50ms});
  begin_a_load_that_is_held();
  EXPECT_THROW(engine_->close(), TimeoutError);
  EXPECT_TRUE(ends());
  valve_.open_all();
  keep_for_the_copy();
}

}  // namespace
}  // namespace kvferry::connector
