// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/shared_file.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/host_mapping.hpp"

#include "byte_sizes.hpp"
#include "complaint.hpp"
#include "made_up_machine.hpp"
#include "other_process.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

/// A path in /dev/shm whose file goes with it.
class SharedFileTest : public ::testing::Test {
 protected:
  ~SharedFileTest() override { ::unlink(path_.c_str()); }

  static std::uint64_t free_bytes() {
    struct statvfs status {};
    EXPECT_EQ(::statvfs("/dev/shm", &status), 0);
    return status.f_bavail * status.f_frsize;
  }

  const fs::path path_ = "/dev/shm/kvferry_test_" + std::to_string(::getpid());
};

TEST_F(SharedFileTest, HasNoNameUntilItIsPublishedWhole) {
  SharedFile made = SharedFile::make(path_, 3 * kMiB + 1);
  EXPECT_EQ(made.size_bytes(), 3 * kMiB + made.page_bytes());
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_THROW(static_cast<void>(SharedFile::open(path_)), ResourceError);
  const HostMapping mine(made);
  std::memset(mine.bytes().data(), 7, mine.size_bytes());
  EXPECT_EQ(made.publish(), Published::kYes);
  const SharedFile opened = SharedFile::open(path_);
  EXPECT_EQ(opened.size_bytes(), made.size_bytes());
  const HostMapping yours(opened);
  EXPECT_EQ(yours.bytes().back(), std::byte{7});
}

TEST_F(SharedFileTest, IsReservedWholeAndForItsUserAlone) {
  const mode_t before = ::umask(0777);
  SharedFile made = SharedFile::make(path_, 8 * kMiB);
  ::umask(before);
  EXPECT_EQ(made.publish(), Published::kYes);
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  EXPECT_EQ(status.st_blocks * 512, 8 * static_cast<std::int64_t>(kMiB));
}

TEST_F(SharedFileTest, TheFirstToPublishHasTheName) {
  SharedFile first = SharedFile::make(path_, kMiB);
  SharedFile second = SharedFile::make(path_, 2 * kMiB);
  EXPECT_EQ(first.publish(), Published::kYes);
  EXPECT_EQ(second.publish(), Published::kNameIsTaken);
  EXPECT_EQ(SharedFile::open(path_).size_bytes(), kMiB);
}

TEST_F(SharedFileTest, WhatOneProcessWritesAnotherReads) {
  SharedFile made = SharedFile::make(path_, kMiB);
  ASSERT_EQ(made.publish(), Published::kYes);
  const HostMapping mapping(made);
  EXPECT_EQ(in_a_process([this] {
              const HostMapping own(SharedFile::open(path_));
              own.bytes()[12345] = std::byte{42};
              return 0;
            }),
            0);
  EXPECT_EQ(mapping.bytes()[12345], std::byte{42});
}

TEST_F(SharedFileTest, OutlivesItsDescriptorAsAMappingAndKeepsItsBytes) {
  std::optional<SharedFile> made = SharedFile::make(path_, 4 * kMiB);
  const HostMapping mapping(*made);
  made.reset();
  EXPECT_EQ(mapping.address() % huge_page_bytes(), 0U);
  mapping.bytes()[kMiB] = std::byte{9};
  mapping.populate();
  mapping.release(mapping.bytes());
  EXPECT_EQ(mapping.bytes()[kMiB], std::byte{9});
}

// Whether it gets huge pages is up to the kernel.
TEST_F(SharedFileTest, WhatIsMadeHugeKeepsItsBytesAndItsSize) {
  const std::uint64_t size = 2 * huge_page_bytes() + 3 * HostMapping::page_bytes();
  SharedFile made = SharedFile::make(path_, size);
  ASSERT_EQ(made.publish(), Published::kYes);
  const HostMapping mapping(made);
  const HostMapping other(made);
  for (std::uint64_t at = 0; at < size; at += 997) mapping.bytes()[at] = std::byte(at % 251);
  mapping.make_huge();
  for (std::uint64_t at = 0; at < size; at += 997) {
    ASSERT_EQ(mapping.bytes()[at], std::byte(at % 251)) << at;
    ASSERT_EQ(other.bytes()[at], std::byte(at % 251)) << at;
  }
  other.bytes()[5] = std::byte{42};
  EXPECT_EQ(mapping.bytes()[5], std::byte{42});
  EXPECT_EQ(fs::file_size(path_), size);
}

TEST_F(SharedFileTest, MoreThanTheFileSystemHasIsRefusedUntouched) {
  const std::uint64_t before = free_bytes();
  const std::uint64_t bytes = before + (std::uint64_t{1} << 40U);
  const MadeUpMachine machine;
  expect_named(complaint_of<ResourceError>(
                   [&] { static_cast<void>(SharedFile::make(path_, bytes, machine.root)); }),
               {"file system at /dev/shm", std::to_string(bytes),
                "mount -o remount,size=", "--shm-size", "emptyDir"});
  EXPECT_LT(before - std::min(before, free_bytes()), 64 * kMiB);
}

TEST_F(SharedFileTest, MoreThanTheMemoryBudgetIsRefused) {
  const MadeUpMachine machine;
  machine.write_available(1023);
  expect_named(complaint_of<ResourceError>(
                   [&] { static_cast<void>(SharedFile::make(path_, kMiB, machine.root)); }),
               {"MemAvailable"});
  EXPECT_EQ(SharedFile::make(path_, kMiB - 4096, machine.root).size_bytes(), kMiB - 4096);
}

TEST_F(SharedFileTest, APathThatIsNotInSharedMemoryIsAConfigError) {
  expect_named(
      complaint_of<ConfigError>([] { static_cast<void>(SharedFile::make("/proc/kvferry", kMiB)); }),
      {"/proc", "/dev/shm"});
  expect_named(complaint_of<ConfigError>(
                   [] { static_cast<void>(SharedFile::make("/dev/shm/no/such/file", kMiB)); }),
               {"/dev/shm/no/such", "/dev/shm/kvferry"});
  expect_named(
      complaint_of<ConfigError>([] { static_cast<void>(SharedFile::open("/proc/version")); }),
      {"/proc", "neither a tmpfs nor a hugetlbfs"});
}

TEST_F(SharedFileTest, ItsDirectoryIsMadeIfThatAloneIsMissing) {
  const fs::path directory = path_.string() + ".d";
  const fs::path inside = directory / "tier";
  const mode_t before = ::umask(0777);
  SharedFile made = SharedFile::make(inside, kMiB);
  ::umask(before);
  EXPECT_EQ(made.publish(), Published::kYes);
  struct stat status {};
  ASSERT_EQ(::stat(directory.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0700U);
  EXPECT_EQ(SharedFile::open(inside).size_bytes(), kMiB);
  EXPECT_EQ(SharedFile::make(directory / "other", kMiB).size_bytes(), kMiB) << "it is there";
  fs::remove_all(directory);

  const fs::path deep = directory / "below" / "tier";
  expect_named(complaint_of<ConfigError>([&] { static_cast<void>(SharedFile::make(deep, kMiB)); }),
               {deep.string(), "mkdir -p " + directory.string() + ","});
  EXPECT_FALSE(fs::exists(directory));
  const fs::path on_disk = fs::current_path() / ("no-tier-" + std::to_string(::getpid())) / "tier";
  expect_named(
      complaint_of<ConfigError>([&] { static_cast<void>(SharedFile::make(on_disk, kMiB)); }),
      {on_disk.string(), "neither a tmpfs nor a hugetlbfs"});
  EXPECT_FALSE(fs::exists(on_disk.parent_path()));
}

/// Of a whole machine that has just started: /dev/shm is a mount of its own, and empty.
TEST_F(SharedFileTest, ThePathOfTheReadmeWorksOnAnEmptyMount) {
  const int status = in_a_process([] {
    if (::unshare(CLONE_NEWNS) != 0) return 77;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
    if (::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=16m,mode=1777") != 0) return 77;
    SharedFile::check_place("/dev/shm/kvferry/tier", kMiB);
    if (fs::exists("/dev/shm/kvferry")) return 1;
    SharedFile made = SharedFile::make("/dev/shm/kvferry/tier", kMiB);
    if (made.publish() != Published::kYes) return 2;
    return SharedFile::open("/dev/shm/kvferry/tier").size_bytes() == kMiB ? 0 : 3;
  });
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no mount can be made here";
  EXPECT_EQ(status, 0);
}

TEST_F(SharedFileTest, APlaceIsCheckedAsItIsTakenAndNothingIsMade) {
  const fs::path directory = path_.string() + ".d";
  EXPECT_NO_THROW(SharedFile::check_place(path_, kMiB));
  EXPECT_NO_THROW(SharedFile::check_place(directory / "tier", kMiB));
  EXPECT_FALSE(fs::exists(directory));
  expect_named(complaint_of<ConfigError>(
                   [&] { SharedFile::check_place(directory / "below" / "tier", kMiB); }),
               {"mkdir -p " + directory.string()});
  expect_named(complaint_of<ConfigError>(
                   [&] { SharedFile::check_place(fs::current_path() / "tier", kMiB); }),
               {"neither a tmpfs nor a hugetlbfs"});
  expect_named(complaint_of<ResourceError>(
                   [&] { SharedFile::check_place(path_, free_bytes() + (kMiB << 20U)); }),
               {"file system at /dev/shm"});
}

/// The first user of a machine has made /dev/shm/kvferry, which is closed to the second one.
TEST_F(SharedFileTest, AnotherUsersDirectoryIsNamedWithItsUserAndAWayOut) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const fs::path directory = path_.string() + ".d";
  static_cast<void>(SharedFile::make(directory / "tier", kMiB).publish());
  const int status = in_a_process([&directory] {
    if (::setgid(4711) != 0 || ::setuid(4711) != 0) return 77;
    const auto names_it = [&directory](const std::string& complaint) {
      return complaint.find("the directory " + directory.string() +
                            " belongs to user 0 and is closed to user 4711: name a path in a "
                            "directory of user 4711, such as /dev/shm/kvferry-4711/tier") !=
             std::string::npos;
    };
    const fs::path inside = directory / "tier";
    const fs::path below = directory / "below" / "tier";
    if (!names_it(
            complaint_of<ResourceError>([&] { static_cast<void>(SharedFile::open(inside)); })))
      return 1;
    if (!names_it(complaint_of<ResourceError>(
            [&] { static_cast<void>(SharedFile::make(inside, kMiB)); })))
      return 2;
    if (!names_it(complaint_of<ResourceError>([&] { SharedFile::check_place(inside, 1); }))) {
      return 3;
    }
    return names_it(
               complaint_of<ResourceError>([&] { static_cast<void>(SharedFile::open(below)); }))
               ? 0
               : 4;
  });
  fs::remove_all(directory);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(SharedFileTest, NothingIsAResourceError) {
  EXPECT_THROW(static_cast<void>(SharedFile::make(path_, 0)), ResourceError);
  EXPECT_THROW(static_cast<void>(SharedFile::make(path_, UINT64_MAX)), ResourceError);
}

TEST_F(SharedFileTest, AFileThatSomebodyElseMadeIsRefused) {
  std::ofstream(path_) << "not a tier";
  ASSERT_EQ(::chmod(path_.c_str(), 0644), 0);
  expect_named(complaint_of<ConfigError>([&] { static_cast<void>(SharedFile::open(path_)); }),
               {path_.string(), "mode 0600"});
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(kMiB)), 0);
  // Its holes would be a signal where memory runs out.
  expect_named(complaint_of<ConfigError>([&] { static_cast<void>(SharedFile::open(path_)); }),
               {"1048576 bytes, of which 4096 are reserved"});
  ::unlink(path_.c_str());
  ASSERT_EQ(::symlink("/dev/shm", path_.c_str()), 0);
  EXPECT_THROW(static_cast<void>(SharedFile::open(path_)), ResourceError);
}

TEST_F(SharedFileTest, OnePartlyReservedIsOpenedByWhoSaysSo) {
  const MadeUpMachine machine;
  machine.write_available(1024);
  // Only what is reserved is asked of the machine.
  SharedFile made = SharedFile::make_partly(path_, 64 * kMiB, kMiB, machine.root);
  EXPECT_EQ(made.size_bytes(), 64 * kMiB);
  EXPECT_EQ(made.reserved_bytes(), kMiB);
  ASSERT_EQ(made.publish(), Published::kYes);
  EXPECT_FALSE(SharedFile::open_if_there(path_.string() + "-", Reserved::kPartly));
  EXPECT_EQ(SharedFile::open(path_, Reserved::kPartly).reserved_bytes(), kMiB);
  expect_named(complaint_of<ConfigError>([&] { static_cast<void>(SharedFile::open(path_)); }),
               {"67108864 bytes, of which 1048576 are reserved"});
}

TEST_F(SharedFileTest, APartIsReservedOnceAndKeepsWhatItHolds) {
  SharedFile made = SharedFile::make_partly(path_, 8 * kMiB, kMiB);
  ASSERT_EQ(made.publish(), Published::kYes);
  made.reserve_part(4 * kMiB, kMiB);
  const HostMapping part(made, 4 * kMiB, kMiB);
  std::memset(part.bytes().data(), 7, part.size_bytes());
  const SharedFile other = SharedFile::open(path_, Reserved::kPartly);
  other.reserve_part(4 * kMiB, 2 * kMiB);
  EXPECT_EQ(made.reserved_bytes(), 3 * kMiB);
  const HostMapping same(other, 4 * kMiB, 2 * kMiB);
  EXPECT_EQ(same.missing_bytes(same.bytes()), kMiB);
  EXPECT_EQ(same.bytes()[kMiB - 1], std::byte{7});
  EXPECT_EQ(same.bytes()[kMiB], std::byte{0});
}

TEST(UnnamedSharedFile, IsOneMemoryForWhoOpensItByItsProcess) {
  const SharedFile made = SharedFile::make_unnamed(3 * kMiB + 1, PageKind::kNormal);
  EXPECT_EQ(made.size_bytes(), 3 * kMiB + 4096);
  // Its size is what others rely on.
  EXPECT_NE(::ftruncate(made.descriptor(), static_cast<off_t>(kMiB)), 0);
  EXPECT_NE(::ftruncate(made.descriptor(), static_cast<off_t>(4 * kMiB)), 0);
  const SharedFile opened =
      SharedFile::of_process(::getpid(), made.descriptor(), PageKind::kNormal);
  EXPECT_EQ(opened.size_bytes(), made.size_bytes());
  EXPECT_EQ(opened.inode(), made.inode());
  EXPECT_NE(SharedFile::make_unnamed(kMiB, PageKind::kNormal).inode(), made.inode());
  const HostMapping own(made);
  const HostMapping other(opened);
  own.bytes()[2 * kMiB] = std::byte{42};
  EXPECT_EQ(other.bytes()[2 * kMiB], std::byte{42});
}

TEST(UnnamedSharedFile, TakesMemoryAsItIsPopulatedAndGivesItBack) {
  const SharedFile made = SharedFile::make_unnamed(4 * kMiB, PageKind::kNormal);
  const auto resident_bytes = [&made] {
    struct stat status {};
    EXPECT_EQ(::fstat(made.descriptor(), &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
  };
  const HostMapping mapping(made);
  EXPECT_EQ(resident_bytes(), 0U);
  mapping.populate(mapping.bytes().first(2 * kMiB));
  EXPECT_EQ(resident_bytes(), 2 * kMiB);
  mapping.bytes()[0] = mapping.bytes()[kMiB] = std::byte{9};
  made.give_back(0, kMiB);
  EXPECT_EQ(resident_bytes(), kMiB);
  EXPECT_EQ(mapping.bytes()[0], std::byte{0});
  EXPECT_EQ(mapping.bytes()[kMiB], std::byte{9});
}

TEST(UnnamedSharedFile, WhatIsNoneIsRefused) {
  EXPECT_THROW(static_cast<void>(SharedFile::make_unnamed(0, PageKind::kNormal)), ResourceError);
  const SharedFile made = SharedFile::make_unnamed(kMiB, PageKind::kNormal);
  const int gone = SharedFile::make_unnamed(kMiB, PageKind::kNormal).descriptor();
  EXPECT_THROW(static_cast<void>(SharedFile::of_process(::getpid(), gone, PageKind::kNormal)),
               ResourceError);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_THROW(static_cast<void>(SharedFile::of_process(::getpid(), null, PageKind::kNormal)),
               ConfigError);
  ::close(null);
}

#ifdef KVFERRY_TEST_HOOKS
TEST_F(SharedFileTest, RunningOutOnTheWayLeavesNothingBehind) {
  const std::uint64_t before = free_bytes();
  test_hooks::fail_nth_of("shared_file.reserve", 3);
  expect_named(
      complaint_of<ResourceError>([&] { static_cast<void>(SharedFile::make(path_, 256 * kMiB)); }),
      {"failed after 134217728 bytes", "/dev/shm", "mount -o remount,size="});
  test_hooks::reset();
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_LT(before - std::min(before, free_bytes()), 64 * kMiB);
}
#endif

}  // namespace
}  // namespace kvferry::cpu_tier
