// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_report.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"

#include "other_process.hpp"
#include "tier_path.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>

namespace kvferry::cpu_tier {
namespace {

class TierReportTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<JoinedTier> join(const std::string& name) const {
    return JoinedTier::join(file_.kept(), {.name = name, .name_space = 5, .weight = 3});
  }
  [[nodiscard]] TierReport inspect() const {
    return inspect_tier(file_.path, file_.machine.root.proc);
  }
  [[nodiscard]] static BlockKey key(std::uint64_t number) {
    return BlockKey::make(std::as_bytes(std::span(&number, 1)), GroupId(0));
  }
  static ChunkId take(JoinedTier& tier, std::uint32_t num_slots) {
    const auto chunk = tier.directory().take_chunk().value();
    tier.directory().divide(chunk, {.num_slots = num_slots, .slab_class = 0});
    return chunk;
  }

  const TierPath file_;
};

TEST_F(TierReportTest, SaysWhatIsThere) {
  const auto a = join("engine a");
  const auto b = join("engine b");
  const ChunkId chunk = take(*a, 8);
  static_cast<void>(take(*a, 2));
  TierDirectory& directory = a->directory();
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(directory.begin_fill({chunk, i}));
  for (std::uint32_t i = 0; i < 2; ++i) directory.publish({chunk, i}, key(i));
  ASSERT_TRUE(directory.slot({chunk, 2}).quarantine());
  const auto leased = b->directory().leases().lease(key(1));
  ASSERT_TRUE(leased);

  const TierReport report = inspect();
  EXPECT_EQ(report.path, file_.path);
  EXPECT_EQ(report.shape, a->tier().shape());
  EXPECT_EQ(report.capacity_bytes, file_.options().capacity_bytes);
  EXPECT_EQ(report.reserved_bytes, a->tier().places().arenas);
  EXPECT_TRUE(report.is_of_this_boot);
  EXPECT_NE(report.made_by.find("process " + std::to_string(::getpid())), std::string::npos);
  EXPECT_EQ(report.num_empty_chunks, TierPath::kNumChunks - 2);
  EXPECT_EQ(report.num_orphan_chunks, 0U);
  EXPECT_EQ(report.slots.num_free, 6U);
  EXPECT_EQ(report.slots.num_filling, 1U);
  EXPECT_EQ(report.slots.num_readable, 2U);
  EXPECT_EQ(report.slots.num_quarantined, 1U);
  EXPECT_EQ(report.slots.num_dying, 0U);
  EXPECT_EQ(report.slots.num_leased, 1U);
  ASSERT_EQ(report.instances.size(), 2U);
  EXPECT_EQ(report.instances[0].name, "engine a");
  EXPECT_EQ(report.instances[0].name_space, 5U);
  EXPECT_EQ(report.instances[0].num_chunks, 2U);
  EXPECT_EQ(report.instances[0].weight, 3U);
  EXPECT_TRUE(report.instances[0].is_alive);
  EXPECT_EQ(report.instances[1].num_chunks, 0U);
  b->directory().leases().end_lease(*leased);
}

TEST_F(TierReportTest, SaysWhoIsGoneAndChangesNothing) {
  EXPECT_TRUE(WIFSIGNALED(in_a_process([&] {
    const auto a = join("gone");
    static_cast<void>(take(*a, 4));
    ::kill(::getpid(), SIGKILL);
    return 0;
  })));
  for (int look = 0; look < 2; ++look) {
    const TierReport report = inspect();
    ASSERT_EQ(report.instances.size(), 1U);
    EXPECT_EQ(report.instances[0].name, "gone");
    EXPECT_FALSE(report.instances[0].is_alive);
    EXPECT_EQ(report.instances[0].num_chunks, 1U);
  }
  file_.boot("next-boot");
  EXPECT_FALSE(inspect().is_of_this_boot);
}

TEST_F(TierReportTest, LooksDoNotKeepATierFromBeingRemoved) {
  auto a = JoinedTier::join(file_.options(), {.name = "a"});
  static_cast<void>(inspect());
  a.reset();
  EXPECT_FALSE(file_.exists());
}

TEST_F(TierReportTest, TiersAreFoundAmongOtherFiles) {
  const std::filesystem::path other = file_.path.string() + "-other";
  std::ofstream(other) << "no tier, though it is long enough for the header of one, which has to "
                          "be longer than this text is if nothing is written here but that. "
                       << std::string(200, 'x');
  const auto is_found = [&](const std::filesystem::path& path) {
    const auto found = find_tiers("/dev/shm");
    return std::find(found.begin(), found.end(), path) != found.end();
  };
  EXPECT_FALSE(is_found(file_.path));
  join("a").reset();
  EXPECT_TRUE(is_found(file_.path));
  EXPECT_FALSE(is_found(other));
  std::filesystem::remove(other);
  EXPECT_TRUE(find_tiers("/dev/shm/no/such/directory").empty());
}

TEST_F(TierReportTest, OnlyWhatNobodyUsesIsRemoved) {
  auto a = join("engine a");
  auto b = join("engine b");
  expect_named(complaint_of<ResourceError>([&] { remove_tier(file_.path); }),
               {file_.path.string(), "in use by engine a, engine b", "stop these first"});
  a.reset();
  b.reset();
  ASSERT_TRUE(file_.exists());
  {
    // Whose scheduler has not come yet.
    const JoinedRank rank(file_.kept(), "engine c", 0);
    expect_named(complaint_of<ResourceError>([&] { remove_tier(file_.path); }), {"fuser"});
  }
  remove_tier(file_.path);
  EXPECT_FALSE(file_.exists());
  EXPECT_THROW(remove_tier(file_.path), ResourceError);
  EXPECT_THROW(static_cast<void>(inspect()), ResourceError);
}

TEST_F(TierReportTest, WhatIsNoTierIsLeftAlone) {
  SharedFile stranger = SharedFile::make(file_.path, 4096, file_.machine.root);
  ASSERT_EQ(stranger.publish(), Published::kYes);
  for (const auto& work : {std::function<void()>([&] { remove_tier(file_.path); }),
                           std::function<void()>([&] { static_cast<void>(inspect()); })}) {
    expect_named(complaint_of<ConfigError>(work),
                 {file_.path.string(), "not the file of a shared tier", "kvferry tier ls"});
  }
  EXPECT_TRUE(file_.exists());
}

}  // namespace
}  // namespace kvferry::cpu_tier
