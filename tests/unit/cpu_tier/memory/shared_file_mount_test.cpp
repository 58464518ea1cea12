// SPDX-License-Identifier: Apache-2.0
// Shared files on a file system that is mounted for them: too small, without a limit, of huge
// pages.
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/cpu_tier/memory/shared_file.hpp"

#include "byte_sizes.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

/// Runs `work` in a child with a file system of its own, mounted at the given directory; its exit
/// status, or nothing if the machine allows no such mount.
std::optional<int> with_mount(const char* kind, const char* options,
                              const std::function<int(const fs::path&)>& work) {
  constexpr int kNotMounted = 77;
  std::string directory = ::testing::TempDir() + "kvferry_mount_XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) return std::nullopt;
  const pid_t child = ::fork();
  if (child == 0) {
    const bool mounted = ::unshare(CLONE_NEWNS) == 0 &&
                         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         ::mount("kvferry", directory.c_str(), kind, 0, options) == 0;
    ::_exit(mounted ? work(directory) : kNotMounted);
  }
  int status = 0;
  const bool ended = child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status);
  ::rmdir(directory.c_str());
  if (!ended) return -1;
  if (WEXITSTATUS(status) == kNotMounted) return std::nullopt;
  return WEXITSTATUS(status);
}

/// 0 if `work` throws a ResourceError that names all parts.
int refused(const std::function<void()>& work, const std::vector<std::string>& parts) {
  try {
    work();
  } catch (const ResourceError& error) {
    for (const std::string& part : parts) {
      if (std::string(error.what()).find(part) == std::string::npos) {
        std::fprintf(stderr, "%s is not in: %s\n", part.c_str(), error.what());
        return 2;
      }
    }
    return 0;
  }
  return 1;
}

constexpr const char* kNoMount =
    "no file system can be mounted here: it takes root and CAP_SYS_ADMIN";

// A container's /dev/shm of 64 MB, and a tier of gigabytes: a signal at the first touch beyond.
TEST(SharedFileOnATmpfs, ThatIsTooSmallIsRefusedWithItsMountAndTheRemedy) {
  const auto status = with_mount("tmpfs", "size=4m", [](const fs::path& mount) {
    const fs::path path = mount / "tier";
    const int whole = refused([&] { static_cast<void>(SharedFile::make(path, 4 * kMiB + 1)); },
                              {"file system at " + mount.string(), "4194304 bytes",
                               "mount -o remount,size=4198400 " + mount.string()});
    if (whole != 0 || fs::exists(path)) return 10 + whole;
    SharedFile first = SharedFile::make(path, 3 * kMiB);
    const int rest =
        refused([&] { static_cast<void>(SharedFile::make(mount / "other", 2 * kMiB)); },
                {"1048576 bytes", "remount,size=5242880"});
    if (rest != 0) return 20 + rest;
    // What was reserved can be written to its last byte, though nothing is left for anybody.
    std::ofstream(mount / "filler") << std::string(2 * kMiB, 'x');
    const HostMapping mapping(first);
    std::memset(mapping.bytes().data(), 1, mapping.size_bytes());
    return 0;
  });
  if (!status) GTEST_SKIP() << kNoMount;
  EXPECT_EQ(*status, 0);
}

// The room may go between the question and the reservation.
TEST(SharedFileOnATmpfs, ThatFillsMeanwhileIsAnErrorAndNotASignal) {
#ifdef KVFERRY_TEST_HOOKS
  const auto status = with_mount("tmpfs", "size=4m", [](const fs::path& mount) {
    struct statvfs before {};
    struct statvfs after {};
    ::statvfs(mount.c_str(), &before);
    test_hooks::on_pause("shared_file.room_was_checked",
                         [&] { std::ofstream(mount / "filler") << std::string(2 * kMiB, 'x'); });
    const int outcome =
        refused([&] { static_cast<void>(SharedFile::make(mount / "tier", 3 * kMiB)); },
                {"No space left on device", mount.string(), "remount,size=5242880"});
    fs::remove(mount / "filler");
    ::statvfs(mount.c_str(), &after);
    return after.f_bfree == before.f_bfree ? outcome : 5;
  });
  if (!status) GTEST_SKIP() << kNoMount;
  EXPECT_EQ(*status, 0);
#else
  GTEST_SKIP() << "without test hooks";
#endif
}

TEST(SharedFileOnATmpfs, WithoutRoomForAPartIsAnErrorAndNotASignal) {
  const auto status = with_mount("tmpfs", "size=4m", [](const fs::path& mount) {
    const SharedFile made = SharedFile::make_partly(mount / "tier", 64 * kMiB, kMiB);
    const int outcome = refused([&] { made.reserve_part(2 * kMiB, 8 * kMiB); },
                                {"No space left on device", mount.string(), "mount -o remount"});
    if (outcome != 0) return outcome;
    made.reserve_part(2 * kMiB, kMiB);
    return made.reserved_bytes() == 2 * kMiB ? 0 : 3;
  });
  if (!status) GTEST_SKIP() << kNoMount;
  EXPECT_EQ(*status, 0);
}

TEST(SharedFileOnATmpfs, WithoutALimitHasRoom) {
  const auto status = with_mount("tmpfs", "size=0", [](const fs::path& mount) {
    return SharedFile::make(mount / "tier", kMiB).size_bytes() == kMiB ? 0 : 1;
  });
  if (!status) GTEST_SKIP() << kNoMount;
  EXPECT_EQ(*status, 0);
}

TEST(SharedFileOnAHugetlbfs, IsHeldToThePool) {
  const HugePagePool pool = huge_page_pool();
  const auto status = with_mount("hugetlbfs", nullptr, [&](const fs::path& mount) {
    const std::uint64_t more = pool.free_bytes() + pool.num_more * pool.page_bytes + 1;
    const int short_pool = refused(
        [&] { static_cast<void>(SharedFile::make(mount / "tier", more)); }, {"vm.nr_hugepages="});
    if (short_pool != 0 || pool.num_free == 0) return short_pool;
    SharedFile made = SharedFile::make(mount / "tier", 1);
    if (made.pages() != PageKind::kPool || made.size_bytes() != pool.page_bytes) return 3;
    if (made.publish() != Published::kYes) return 4;
    const HostMapping mapping(SharedFile::open(mount / "tier"));
    std::memset(mapping.bytes().data(), 1, mapping.size_bytes());
    return huge_page_share(mapping.bytes()) == 1.0 ? 0 : 5;
  });
  if (!status) GTEST_SKIP() << kNoMount;
  EXPECT_EQ(*status, 0);
}

}  // namespace
}  // namespace kvferry::cpu_tier
