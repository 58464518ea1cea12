// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/member_lock.hpp"

#include "kvferry/base/error.hpp"

#include "other_process.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unistd.h>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

class MemberLockTest : public ::testing::Test {
 protected:
  MemberLockTest() { std::ofstream(path_) << "a tier"; }
  ~MemberLockTest() override { fs::remove(path_); }

  [[nodiscard]] bool is_dead() const { return DeathLock::try_take(path_, base_).has_value(); }

  const fs::path path_ = "/dev/shm/kvferry-member-lock-test-" + std::to_string(::getpid());
  const LockBase base_ = lock_base_of("engine");
};

TEST_F(MemberLockTest, BasesAreApartAndWhereNoFileEnds) {
  std::set<LockBase> bases;
  for (int i = 0; i < 1000; ++i) {
    const LockBase base = lock_base_of("engine-" + std::to_string(i));
    EXPECT_EQ(base % kMaxMembers, 0U);
    EXPECT_GE(base, std::uint64_t{1} << 61U);
    EXPECT_LT(base, std::uint64_t{1} << 62U);
    bases.insert(base);
  }
  EXPECT_EQ(bases.size(), 1000U);
  EXPECT_EQ(lock_base_of("engine"), base_);
}

TEST_F(MemberLockTest, AnInstanceIsDeadWhenItsLastMemberIs) {
  EXPECT_TRUE(is_dead());
  std::optional<MemberLock> scheduler(std::in_place, path_, base_, 0);
  std::optional<MemberLock> rank(std::in_place, path_, base_, kMaxMembers - 1);
  EXPECT_FALSE(is_dead());
  scheduler.reset();
  EXPECT_FALSE(is_dead());
  rank.reset();
  EXPECT_TRUE(is_dead());
}

TEST_F(MemberLockTest, OfOneMemberThereIsOne) {
  const MemberLock lock(path_, base_, 3);
  const MemberLock other_member(path_, base_, 4);
  const MemberLock other_instance(path_, lock_base_of("other"), 3);
  try {
    const MemberLock second(path_, base_, 3);
    ADD_FAILURE() << "two of them";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
  }
}

TEST_F(MemberLockTest, WhoSweepsKeepsOthersOut) {
  const auto sweeping = DeathLock::try_take(path_, base_);
  ASSERT_TRUE(sweeping);
  EXPECT_FALSE(DeathLock::try_take(path_, base_)) << "two sweepers";
  EXPECT_THROW(MemberLock(path_, base_, 0), ResourceError) << "it rises under the sweeper's hands";
}

TEST_F(MemberLockTest, AMissingFileIsAnErrorThatNamesIt) {
  fs::remove(path_);
  EXPECT_THROW(MemberLock(path_, base_, 0), ResourceError);
  EXPECT_THROW(static_cast<void>(DeathLock::try_take(path_, base_)), ResourceError);
}

/// A process that holds the lock and does `then`.
class Holder : public OtherProcess {
 public:
  Holder(const fs::path& path, LockBase base, const std::function<void()>& then = {})
      : OtherProcess([&] {
          const MemberLock lock(path, base, 1);
          if (then) then();
          stay();
        }) {}
};

TEST_F(MemberLockTest, AKilledProcessIsDeadAtOnceAndAsAZombieToo) {
  const Holder holder(path_, base_);
  EXPECT_FALSE(is_dead());
  holder.become_zombie();
  EXPECT_TRUE(is_dead());
}

TEST_F(MemberLockTest, AStoppedProcessLives) {
  Holder holder(path_, base_);
  holder.signal(SIGSTOP);
  EXPECT_FALSE(is_dead());
  holder.signal(SIGCONT);
  holder.end();
  EXPECT_TRUE(is_dead());
}

// Workers that an engine forked, and that outlive it, do not keep it alive.
TEST_F(MemberLockTest, AForkedChildHoldsNothing) {
  int runs[2];
  int ends[2];
  ASSERT_EQ(::pipe(runs), 0);
  ASSERT_EQ(::pipe(ends), 0);
  Holder holder(path_, base_, [&] {
    char byte = 0;
    if (::fork() != 0) {
      static_cast<void>(::read(runs[0], &byte, 1));
      return;
    }
    ::close(ends[1]);
    static_cast<void>(::write(runs[1], "r", 1));
    static_cast<void>(::read(ends[0], &byte, 1));  // until the test lets go
    ::_exit(0);
  });
  EXPECT_FALSE(is_dead());
  holder.end();
  EXPECT_TRUE(is_dead());
  for (const int end : {runs[0], runs[1], ends[0], ends[1]}) ::close(end);
}

}  // namespace
}  // namespace kvferry::cpu_tier
