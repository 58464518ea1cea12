// SPDX-License-Identifier: Apache-2.0
// G7: a rank whose device is lost.
#include "kvferry/base/error.hpp"

#include "worker_fixture.hpp"

namespace kvferry::connector {
namespace {

using gpu::LostMemory;

class WorkerLossTest : public WorkerTest {
 protected:
  /// What `call` says in its DeviceError.
  template <class Call>
  static std::string error_of(Call call) {
    try {
      call();
    } catch (const DeviceError& error) {
      return error.what();
    }
    ADD_FAILURE() << "no DeviceError";
    return {};
  }
  static void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
  /// A load of two blocks during which the device is lost.
  void lose_in_a_load(LostMemory memory) {
    valve_.lose_nth(Kind::kCopyH2D, 1, memory);
    StepPlan plan = next_plan();
    plan.loads.push_back(load(1, pairs(0, 0, 2)));
    bind_and_save(plan);
    await([&] { return device_->lost().has_value(); });
  }
};

TEST_F(WorkerLossTest, CollectThrowsWhatWasLostSinceWhenAndWhatStays) {
  lose_in_a_load(LostMemory::kInDoubt);
  await([&] { return engine_->stats().quarantined_blocks != 0; });
  const std::string since = gpu::utc_text(device_->lost()->since);
  for (int i = 0; i < 2; ++i) {
    expect_parts(
        error_of([&] { static_cast<void>(engine_->collect()); }),
        {"rank 1", "in doubt", since, "by request of the test", "1 transfers with", "quarantine"});
  }
  EXPECT_TRUE(take_report().loads.empty()) << "it never ends";
}

TEST_F(WorkerLossTest, CloseIsBoundedAndSaysThatMemoryIsInDoubt) {
  lose_in_a_load(LostMemory::kInDoubt);
  expect_parts(error_of([&] { engine_->close(); }), {"rank 1", "in doubt", "quarantine"});
  expect_parts(error_of([&] { engine_->close(); }), {"rank 1", "in doubt", "quarantine"});
}

// ASan watches: the copy that the device is still at reads the arena after the engine is gone.
TEST_F(WorkerLossTest, DestructionKeepsTheArenaThatTheDeviceMayStillTouch) {
  valve_.hold(Kind::kCopyH2D);
  StepPlan plan = next_plan();
  plan.loads.push_back(load(1, pairs(0, 0, 2)));
  bind_and_save(plan);
  await([&] { return valve_.num_arrived(Kind::kCopyH2D) == 1; });
  valve_.lose_nth(Kind::kFill, 1, LostMemory::kInDoubt);
  device_->view_stream(0)->fill(reinterpret_cast<std::uintptr_t>(pool_.data()), 0, 1);
  engine_.reset();
  const auto usage = gpu::host_device_usage(*device_);
  EXPECT_GE(usage.num_registrations, 1U);
  EXPECT_GE(usage.num_streams, 2U);
  valve_.open_all();
}

TEST_F(WorkerLossTest, AQuietLossIsToldAndLeavesNothingBehind) {
  lose_in_a_load(LostMemory::kQuiet);
  expect_parts(error_of([&] { static_cast<void>(engine_->collect()); }),
               {"rank 1", "the device was lost at", "by request of the test"});
  EXPECT_NO_THROW(engine_->close());
  engine_.reset();
  EXPECT_EQ(gpu::host_device_usage(*device_), gpu::HostDeviceUsage{});
}

TEST_F(WorkerLossTest, CopyPathsArePrinted) {
  EXPECT_NE(engine_->copy_paths_text().find("copy paths of host"), std::string::npos)
      << engine_->copy_paths_text();
}

}  // namespace
}  // namespace kvferry::connector
