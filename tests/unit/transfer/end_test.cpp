// SPDX-License-Identifier: Apache-2.0
// Engines that end while a copy does not.
#include "rig.hpp"
#include "unordered_byte.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <unistd.h>

namespace kvferry::transfer {
namespace {

using namespace std::chrono_literals;
using Kind = Valve::Kind;

class EndTest : public TransferTest {
 protected:
  /// Device and memory are kept for the copy, which goes on when the rig opens the valve.
  static void begin_a_load_that_is_held(Rig& rig) {
    rig.valve.hold(Kind::kCopyH2D);
    rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 3));
    await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) > 0; }, "the copy");
    rig.is_left_behind = true;
  }
  static bool ends(Rig& rig) {
    auto end = std::async(std::launch::async, [&] { rig.engine.reset(); });
    const bool ended = end.wait_for(kForever / 4) == std::future_status::ready;
    rig.valve.open_all();
    return ended;
  }
  /// Whether the copy has come: nothing tells of its end any more.
  static bool holds(const Rig& rig, BlockId block, SlotId slot) {
    const gpu::BlockGeometry& geometry = rig.geometries[Rig::kDense.value()];
    const std::uintptr_t packed = rig.classes[Rig::kDense.value()].slots.address(slot);
    for (std::size_t f = 0; f < geometry.fragments.size(); ++f) {
      const std::uintptr_t from = packed + geometry.packed_offsets[f];
      const std::uintptr_t to = geometry.fragment_address(f, block);
      for (std::uint64_t i = 0; i < geometry.fragments[f].bytes; ++i) {
        if (gpu::unordered_byte(to + i) != gpu::unordered_byte(from + i)) return false;
      }
    }
    return true;
  }
  static RigOptions impatient() {
    return {.transfer = {.staging_bytes = std::uint64_t{1} << 16, .end_timeout = 50ms}};
  }
};

TEST_F(EndTest, ACopyThatDoesNotEndIsLeftBehindAfterTheBoundAndIsSaid) {
  Rig rig(impatient());
  begin_a_load_that_is_held(rig);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(ends(rig)) << "it waits for the copy";
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("have not ended within"), std::string::npos) << said;
  EXPECT_NE(said.find("kept until the process ends"), std::string::npos) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << "one line: " << said;
  // ASan watches the copy, which reads the arena and writes the blocks now.
  await([&] { return holds(rig, BlockId(2), SlotId(2)); }, "the copy's end");
}

TEST_F(EndTest, WhoHasWaitedForACloseDoesNotWaitAgain) {
  Rig rig({.transfer = {.end_timeout = 100ms}});
  begin_a_load_that_is_held(rig);
  EXPECT_FALSE(rig.engine->close(0ns));
  EXPECT_FALSE(rig.engine->end());
  EXPECT_FALSE(rig.engine->end());
  EXPECT_TRUE(ends(rig));
}

TEST_F(EndTest, ACopyThatEndsLateIsWaitedForAndNothingIsLeft) {
  Rig rig;
  rig.valve.hold(Kind::kCopyH2D);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 3));
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) > 0; }, "the copy");
  EXPECT_FALSE(rig.engine->close(10ms));
  rig.valve.open_all();
  EXPECT_TRUE(rig.engine->end());
}

// A hung device must not keep its process: it could not be restarted.
TEST_F(EndTest, AProcessWhoseCopyNeverEndsEnds) {
  EXPECT_EXIT(
      {
        // By a signal if it hangs.
        ::alarm(60);
        auto* const rig = new Rig(impatient());
        begin_a_load_that_is_held(*rig);
        rig->engine.reset();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "kept until the process ends");
}

}  // namespace
}  // namespace kvferry::transfer
