// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_hold.hpp"

#include "kvferry/cpu_tier/memory/shared_file.hpp"

#include "tier_path.hpp"

#include <gtest/gtest.h>

namespace kvferry::cpu_tier {
namespace {

class TierHoldTest : public ::testing::Test {
 protected:
  TierHoldTest() {
    EXPECT_EQ(SharedFile::make(file_.path, 4096, file_.machine.root).publish(), Published::kYes);
  }
  [[nodiscard]] SharedFile open() const { return SharedFile::open(file_.path); }

  const TierPath file_;
};

// Neither may keep the other from it, though both are still open.
TEST_F(TierHoldTest, OfTwoThatLetGoTheSecondRemovesIt) {
  const SharedFile first = open();
  const SharedFile second = open();
  EXPECT_EQ(hold(first), Held::kYes);
  EXPECT_EQ(hold(second), Held::kYes);
  EXPECT_EQ(remove_unless_held(first), Removed::kIsHeld);
  EXPECT_TRUE(file_.exists());
  EXPECT_EQ(remove_unless_held(second), Removed::kYes);
  EXPECT_FALSE(file_.exists());
}

TEST_F(TierHoldTest, WhatIsNotNamedAnyMoreIsGone) {
  const SharedFile late = open();
  EXPECT_EQ(remove_unless_held(open()), Removed::kYes);
  EXPECT_EQ(hold(late), Held::kIsGone);
}

}  // namespace
}  // namespace kvferry::cpu_tier
