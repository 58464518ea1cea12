// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include "kvferry/base/error.hpp"

#include "made_up_machine.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

class MemoryBudget : public ::testing::Test, protected MadeUpMachine {
 protected:
  /// Room under the limit of that name; nothing if it is not listed.
  std::optional<std::uint64_t> room(const std::string& name) const {
    for (const MemoryLimit& limit : read_memory_limits(root)) {
      if (limit.name == name) return limit.room_bytes;
    }
    return std::nullopt;
  }
};

TEST_F(MemoryBudget, MissingFilesLimitNothing) {
  EXPECT_TRUE(read_memory_limits(root).empty());
  EXPECT_NO_THROW(check_memory_budget(std::uint64_t{1} << 60, root));
}

TEST_F(MemoryBudget, MemAvailableIsInKibibytes) {
  write_proc("meminfo", "MemTotal:       24684096 kB\nMemFree: 5 kB\nMemAvailable:   1000 kB\n");
  EXPECT_EQ(room("MemAvailable"), 1024000U);
  EXPECT_NO_THROW(check_memory_budget(1024000, root));
  EXPECT_THROW(check_memory_budget(1024001, root), ResourceError);
}

TEST_F(MemoryBudget, RefusalNamesLimitRoomRequestAndRemedy) {
  write_proc("meminfo", "MemAvailable:   1048576 kB\n");
  try {
    check_memory_budget(std::uint64_t{3} << 30, root);
    FAIL() << "3 GiB fit into 1 GiB";
  } catch (const ResourceError& error) {
    const std::string message = error.what();
    for (const char* part : {"MemAvailable", "3221225472 bytes (3.00 GiB)",
                             "1073741824 bytes (1.00 GiB)", "ask for less"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
}

TEST_F(MemoryBudget, EveryLevelOfCgroupV2Counts) {
  write_proc("self/cgroup", "0::/pod/container/worker\n");
  write_cgroup("cgroup.controllers", "memory\n");
  write_cgroup("pod/memory.max", "9000\n");
  write_cgroup("pod/memory.current", "1000\n");
  write_cgroup("pod/container/memory.max", "max\n");
  write_cgroup("pod/container/memory.high", "5000\n");
  write_cgroup("pod/container/memory.current", "700\n");
  write_cgroup("pod/container/worker/memory.max", "max\n");
  write_cgroup("pod/container/worker/memory.high", "max\n");

  EXPECT_EQ(read_memory_limits(root).size(), 2U);
  EXPECT_EQ(room(cgroup_name("memory.max", "pod")), 8000U);
  EXPECT_EQ(room(cgroup_name("memory.high", "pod/container")), 4300U);
  EXPECT_NO_THROW(check_memory_budget(4300, root));
  try {
    check_memory_budget(4301, root);
    FAIL() << "memory.high of an inner level was ignored";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find(cgroup_name("memory.high", "pod/container")),
              std::string::npos);
  }
}

TEST_F(MemoryBudget, CgroupNamespaceRootIsALevel) {
  write_proc("self/cgroup", "0::/\n");
  write_cgroup("cgroup.controllers", "memory\n");
  write_cgroup("memory.max", "4096\n");
  write_cgroup("memory.current", "96\n");
  EXPECT_EQ(room(cgroup_name("memory.max", "")), 4000U);
}

TEST_F(MemoryBudget, PathOutsideTheCgroupNamespaceFallsBackToItsRoot) {
  write_proc("self/cgroup", "0::/../elsewhere\n");
  write_cgroup("cgroup.controllers", "memory\n");
  write_cgroup("memory.max", "4096\n");
  write_cgroup("elsewhere/memory.max", "1\n");
  EXPECT_EQ(read_memory_limits(root).size(), 1U);
  EXPECT_EQ(room(cgroup_name("memory.max", "")), 4096U);
}

TEST_F(MemoryBudget, InactivePageCacheIsRoom) {
  write_proc("self/cgroup", "0::/a\n");
  write_cgroup("cgroup.controllers", "memory\n");
  write_cgroup("a/memory.max", "10000\n");
  write_cgroup("a/memory.current", "9000\n");
  write_cgroup("a/memory.stat", "anon 3000\nfile 6000\nactive_file 1000\ninactive_file 5000\n");
  EXPECT_EQ(room(cgroup_name("memory.max", "a")), 6000U);
}

TEST_F(MemoryBudget, UsageAboveTheLimitLeavesNoRoom) {
  write_proc("self/cgroup", "0::/a\n");
  write_cgroup("cgroup.controllers", "memory\n");
  write_cgroup("a/memory.high", "1000\n");
  write_cgroup("a/memory.current", "1500\n");
  EXPECT_EQ(room(cgroup_name("memory.high", "a")), 0U);
  EXPECT_THROW(check_memory_budget(1, root), ResourceError);
}

TEST_F(MemoryBudget, EveryLevelOfCgroupV1Counts) {
  write_proc("self/cgroup",
             "5:cpu,cpuacct:/other\n4:hugetlb,memory:/docker/abc\n1:name=systemd:/x\n");
  write_cgroup("memory/memory.limit_in_bytes", "9223372036854771712\n");
  write_cgroup("memory/docker/memory.limit_in_bytes", "8000\n");
  write_cgroup("memory/docker/memory.usage_in_bytes", "3000\n");
  write_cgroup("memory/docker/memory.stat", "inactive_file 7\ntotal_inactive_file 500\n");
  write_cgroup("memory/docker/abc/memory.limit_in_bytes", "6000\n");
  EXPECT_EQ(read_memory_limits(root).size(), 2U);
  EXPECT_EQ(room(cgroup_name("memory.limit_in_bytes", "memory/docker")), 5500U);
  EXPECT_EQ(room(cgroup_name("memory.limit_in_bytes", "memory/docker/abc")), 6000U);
}

// A container without a cgroup namespace: the path is the host's, the mount its own subtree.
TEST_F(MemoryBudget, LevelsOutsideTheMountAreSkippedUpToItsRoot) {
  write_proc("self/cgroup", "4:memory:/docker/abc\n");
  write_cgroup("memory/memory.limit_in_bytes", "6000\n");
  write_cgroup("memory/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(room(cgroup_name("memory.limit_in_bytes", "memory")), 5000U);
}

TEST_F(MemoryBudget, HybridReadsBothHierarchies) {
  write_proc("self/cgroup", "4:memory:/a\n0::/b\n");
  write_cgroup("memory/a/memory.limit_in_bytes", "6000\n");
  write_cgroup("unified/b/memory.high", "5000\n");
  EXPECT_EQ(room(cgroup_name("memory.limit_in_bytes", "memory/a")), 6000U);
  EXPECT_EQ(room(cgroup_name("memory.high", "unified/b")), 5000U);
}

TEST_F(MemoryBudget, OtherControllersLimitNothing) {
  write_proc("self/cgroup", "4:cpu,memory_recursiveprot:/a\nnot a line\n");
  write_cgroup("memory/a/memory.limit_in_bytes", "6000\n");
  EXPECT_TRUE(read_memory_limits(root).empty());
}

TEST(MemoryBudgetOfThisMachine, HasMemAvailable) {
  const auto limits = read_memory_limits();
  ASSERT_FALSE(limits.empty());
  EXPECT_EQ(limits.front().name, "MemAvailable");
  EXPECT_GT(limits.front().room_bytes, 0U);
}

/// A cgroup of this machine's own, with a limit; where the machine does not allow one, the test is
/// skipped.
class RealCgroup {
 public:
  explicit RealCgroup(std::uint64_t limit_bytes) {
    const fs::path v2 = "/sys/fs/cgroup";
    const fs::path v1 = v2 / "memory";
    const bool has_v1 = fs::exists(v1 / "memory.limit_in_bytes");
    path_ = (has_v1 ? v1 : v2) / ("kvferry_test_" + std::to_string(::getpid()));
    std::error_code refused;
    if (!fs::create_directory(path_, refused)) return;
    std::ofstream limit(path_ / (has_v1 ? "memory.limit_in_bytes" : "memory.max"));
    limit << limit_bytes << std::flush;
    made_ = limit.good();
  }
  ~RealCgroup() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  RealCgroup(const RealCgroup&) = delete;
  RealCgroup& operator=(const RealCgroup&) = delete;

  [[nodiscard]] bool made() const { return made_; }
  [[nodiscard]] const fs::path& path() const { return path_; }
  /// Runs `work` in a child that is a member; its exit status, or nothing if it could not join.
  [[nodiscard]] std::optional<int> run(const std::function<int()>& work) const {
    constexpr int kNotJoined = 77;
    const pid_t child = ::fork();
    if (child == 0) {
      std::ofstream members(path_ / "cgroup.procs");
      members << ::getpid() << std::flush;
      ::_exit(members.good() ? work() : kNotJoined);
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
    if (WEXITSTATUS(status) == kNotJoined) return std::nullopt;
    return WEXITSTATUS(status);
  }

 private:
  fs::path path_;
  bool made_ = false;
};

TEST(RealMemoryBudget, AMemberOfACgroupIsHeldToItsLimit) {
  constexpr std::uint64_t kLimit = std::uint64_t{256} << 20;
  const RealCgroup cgroup(kLimit);
  if (!cgroup.made()) GTEST_SKIP() << "no cgroup can be made here";
  const auto status = cgroup.run([&] {
    try {
      check_memory_budget(kLimit / 2);
    } catch (const ResourceError&) {
      return 1;
    }
    try {
      check_memory_budget(kLimit + 1);
    } catch (const ResourceError& error) {
      return std::string(error.what()).find(cgroup.path().string()) == std::string::npos ? 2 : 0;
    }
    return 3;
  });
  if (!status) GTEST_SKIP() << "the cgroup cannot be joined";
  EXPECT_EQ(*status, 0);
}

}  // namespace
}  // namespace kvferry::cpu_tier
