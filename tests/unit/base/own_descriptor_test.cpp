// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/own_descriptor.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kvferry {
namespace {

using namespace std::chrono_literals;

OwnDescriptor open_something() { return OwnDescriptor::open("/dev/null", O_RDONLY); }
bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) >= 0; }

/// How many descriptors of this process lead to the path; 255 at most. Allocates nothing.
int num_open(const std::string& path) {
  int count = 0;
  for (int descriptor = 3; descriptor < 128; ++descriptor) {
    std::array<char, 64> link{};
    std::array<char, 256> target{};
    std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
    const ssize_t length = ::readlink(link.data(), target.data(), target.size());
    const std::string_view text(target.data(),
                                static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    if (length > 0 && text == path && count < 255) ++count;
  }
  return count;
}

/// A file for locks of both kinds.
class LockedFile {
 public:
  LockedFile() { std::ofstream(path_) << "locks"; }
  ~LockedFile() { ::unlink(path_.c_str()); }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] OwnDescriptor open_locked() const {
    OwnDescriptor own = OwnDescriptor::open(path_.c_str(), O_RDWR);
    EXPECT_TRUE(lock(own));
    return own;
  }
  [[nodiscard]] bool is_free() const { return lock(OwnDescriptor::open(path_.c_str(), O_RDWR)); }

 private:
  static bool lock(const OwnDescriptor& own) {
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const bool has_bytes = ::fcntl(own.get(), F_OFD_SETLK, &whole) == 0;
    return ::flock(own.get(), LOCK_EX | LOCK_NB) == 0 && has_bytes;
  }
  const std::string path_ = "/dev/shm/kvferry-own-descriptor-" + std::to_string(::getpid());
};

TEST(OwnDescriptorTest, ClosesWhatItHas) {
  int number = -1;
  {
    const OwnDescriptor own = open_something();
    number = own.get();
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(OwnDescriptorTest, AMovedOneHasNothing) {
  OwnDescriptor first = open_something();
  const int number = first.get();
  OwnDescriptor second(std::move(first));
  EXPECT_EQ(second.get(), number);
  OwnDescriptor third;
  EXPECT_FALSE(third);
  third = std::move(second);
  EXPECT_EQ(third.get(), number);
  EXPECT_TRUE(is_open(number));
}

TEST(OwnDescriptorTest, AFailedOpenIsNone) {
  const OwnDescriptor none = OwnDescriptor::open("/dev/null/there-is-no-such-file", O_RDONLY);
  EXPECT_EQ(errno, ENOTDIR);
  EXPECT_FALSE(none);
  EXPECT_EQ(none.get(), -1);
}

TEST(OwnDescriptorTest, AForkedChildDoesNotHaveIt) {
  const OwnDescriptor own = open_something();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool gone = !own && !is_open(own.get());
    // The number may be the child's own by now, which the destructor has to leave alone.
    const int reused = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    { const OwnDescriptor of_child = open_something(); }
    ::_exit(gone && is_open(reused) ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_open(own.get()));
}

TEST(OwnDescriptorTest, InAForkedChildAnObjectOfTheParentNeverBecomesAFileOfTheChild) {
  auto of_parent = std::make_unique<OwnDescriptor>(open_something());
  const pid_t child = ::fork();
  if (child == 0) {
    const OwnDescriptor of_child = open_something();
    const bool is_apart = of_child && of_parent->get() == -1;
    of_parent.reset();
    const bool stays_open = is_open(of_child.get());
    // The parent's object has given its entry back.
    std::vector<OwnDescriptor> more;
    while (more.size() + 1 < OwnDescriptor::kMost) more.push_back(open_something());
    ::_exit(is_apart && stays_open && is_open(of_child.get()) ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_open(of_parent->get()));
}

TEST(OwnDescriptorTest, TooManyAreAnErrorThatLeavesNoneOpen) {
  std::vector<OwnDescriptor> all;
  int last = -1;
  try {
    for (std::uint32_t i = 0; i <= OwnDescriptor::kMost; ++i) {
      all.push_back(OwnDescriptor::opened_by(
          [&last] { return last = ::open("/dev/null", O_RDONLY | O_CLOEXEC); }));
      ASSERT_GE(last, 0) << "the process may open too few files";
    }
    ADD_FAILURE() << "no error";
  } catch (const ResourceError&) {
    EXPECT_FALSE(is_open(last));
  }
}

TEST(OwnDescriptorTest, ItsLocksEndWithItWhereSomethingElseHasACopy) {
  const LockedFile file;
  OwnDescriptor own = file.open_locked();
  const int copy = ::dup(own.get());
  EXPECT_FALSE(file.is_free());
  own = OwnDescriptor();
  EXPECT_TRUE(file.is_free()) << "of both kinds";
  ::close(copy);
}

// Exactly there a fork left the parent's lock with the child.
TEST(OwnDescriptorTest, AForkBetweenOpeningAndKnowingLeavesTheChildNothing) {
  const LockedFile file;
  std::atomic<int> opened{-1};
  std::atomic<bool> forked{false};
  std::thread forks([&] {
    while (opened < 0) std::this_thread::yield();
    const pid_t child = ::fork();
    if (child == 0) ::_exit(is_open(opened) ? 1 : 0);
    forked = true;
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "the child has the file";
  });
  const OwnDescriptor own = OwnDescriptor::opened_by([&] {
    opened = ::open(file.path().c_str(), O_RDWR | O_CLOEXEC);
    // The fork has time to come: it does, or it waits for the end of this.
    for (int i = 0; i < 100 && !forked; ++i) std::this_thread::sleep_for(1ms);
    return opened.load();
  });
  EXPECT_TRUE(own);
  forks.join();
}

TEST(OwnDescriptorTest, ChildrenForkedAtAnyMomentHaveNone) {
  const LockedFile file;
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!ends) {
        OwnDescriptor one = OwnDescriptor::open(file.path().c_str(), O_RDWR);
        const OwnDescriptor other = std::move(one);
        // A fork must get its turn.
        std::this_thread::sleep_for(10us);
      }
    });
  }
  int num_with_it = 0;
  for (int i = 0; i < 100; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(num_open(file.path()));
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    num_with_it += status != 0 ? 1 : 0;
  }
  EXPECT_EQ(num_with_it, 0) << "children had the file";
  ends = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_open(file.path()), 0) << "nor has the parent";
}

}  // namespace
}  // namespace kvferry
