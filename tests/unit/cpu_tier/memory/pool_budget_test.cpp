// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/pool_budget.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/huge_pages.hpp"

#include "complaint.hpp"
#include "made_up_machine.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20U;

class PoolBudget : public ::testing::Test, protected MadeUpMachine {
 protected:
  PoolBudget() { write_pool(100, 60, 20); }

  void write_pool(int total, int free, int reserved) {
    write_proc("meminfo", "MemAvailable: 1 kB\nHugePages_Total: " + std::to_string(total) +
                              "\nHugePages_Free: " + std::to_string(free) +
                              "\nHugePages_Rsvd: " + std::to_string(reserved) +
                              "\nHugePages_Surp: 3\nHugepagesize: 2048 kB\n");
  }
  std::optional<std::uint64_t> room(const std::string& name, PoolStep step = PoolStep::kMap) const {
    for (const MemoryLimit& limit : read_pool_limits(kHugePage, step, root)) {
      if (limit.name == name) return limit.room_bytes;
    }
    return std::nullopt;
  }
  std::string refusal(std::uint64_t bytes, PoolStep step = PoolStep::kMap) const {
    try {
      check_pool_budget(bytes, step, root);
    } catch (const ResourceError& error) {
      return error.what();
    }
    return {};
  }
};

TEST_F(PoolBudget, WhatIsFreeAndNotReservedIsRoom) {
  EXPECT_EQ(refusal(40 * kHugePage), "");
  expect_named(refusal(40 * kHugePage + 1), {"pool of huge pages", "85983232 bytes",
                                             "83886080 bytes", "sudo sysctl vm.nr_hugepages=101 "});
  EXPECT_TRUE(pool_has(40 * kHugePage, root));
  EXPECT_FALSE(pool_has(40 * kHugePage + 1, root));
}

TEST_F(PoolBudget, WhatTheKernelMayAddIsRoomButNotInThePool) {
  write_proc("sys/vm/nr_overcommit_hugepages", "13\n");
  EXPECT_EQ(refusal(50 * kHugePage), "");
  EXPECT_NE(refusal(51 * kHugePage), "");
  EXPECT_FALSE(pool_has(41 * kHugePage, root));
}

TEST_F(PoolBudget, AMachineWithoutAPoolHasNoRoom) {
  write_proc("meminfo", "MemAvailable: 1 kB\n");
  expect_named(refusal(1), {"pool of huge pages", "sudo sysctl vm.nr_hugepages=1 "});
}

TEST_F(PoolBudget, EveryLevelOfCgroupV2Counts) {
  write_proc("self/cgroup", "0::/pod/container\n");
  write_cgroup("cgroup.controllers", "hugetlb memory\n");
  write_cgroup("pod/hugetlb.2MB.max", std::to_string(30 * kHugePage) + "\n");
  write_cgroup("pod/hugetlb.2MB.current", std::to_string(20 * kHugePage) + "\n");
  write_cgroup("pod/hugetlb.1GB.max", "0\n");
  write_cgroup("pod/container/hugetlb.2MB.max", "max\n");
  write_cgroup("pod/container/hugetlb.2MB.rsvd.max", std::to_string(25 * kHugePage) + "\n");
  write_cgroup("pod/container/hugetlb.2MB.rsvd.current", std::to_string(16 * kHugePage) + "\n");
  EXPECT_EQ(room(cgroup_name("hugetlb.2MB.max", "pod")), 10 * kHugePage);
  EXPECT_EQ(room(cgroup_name("hugetlb.2MB.rsvd.max", "pod/container")), 9 * kHugePage);
  EXPECT_EQ(refusal(9 * kHugePage), "");
  expect_named(refusal(9 * kHugePage + 1),
               {cgroup_name("hugetlb.2MB.rsvd.max", "pod/container"), "18874368 bytes",
                "echo 54525952 > ", "resources.limits.hugepages-2Mi"});
  EXPECT_FALSE(pool_has(10 * kHugePage, root));
}

// The mapping has reserved its pages already: reserving is counted once, using is still to come.
TEST_F(PoolBudget, ToPopulateOnlyWhatCountsUseLimits) {
  write_pool(100, 40, 40);
  write_proc("self/cgroup", "0::/a\n");
  write_cgroup("cgroup.controllers", "hugetlb\n");
  write_cgroup("a/hugetlb.2MB.max", std::to_string(10 * kHugePage) + "\n");
  write_cgroup("a/hugetlb.2MB.rsvd.max", "0\n");
  EXPECT_EQ(refusal(10 * kHugePage, PoolStep::kPopulate), "");
  expect_named(refusal(11 * kHugePage, PoolStep::kPopulate), {cgroup_name("hugetlb.2MB.max", "a")});
}

TEST_F(PoolBudget, EveryLevelOfCgroupV1Counts) {
  write_proc("self/cgroup", "4:hugetlb:/docker/abc\n3:memory:/docker/abc\n");
  write_cgroup("hugetlb/hugetlb.2MB.limit_in_bytes", "9223372036852678656\n");
  write_cgroup("hugetlb/docker/hugetlb.2MB.limit_in_bytes", std::to_string(8 * kHugePage) + "\n");
  write_cgroup("hugetlb/docker/hugetlb.2MB.usage_in_bytes", std::to_string(3 * kHugePage) + "\n");
  EXPECT_EQ(read_pool_limits(kHugePage, PoolStep::kMap, root).size(), 2U);
  EXPECT_EQ(room(cgroup_name("hugetlb.2MB.limit_in_bytes", "hugetlb/docker")), 5 * kHugePage);
}

TEST_F(PoolBudget, PagesOfAGibibyteAreNamedAsTheKernelDoes) {
  write_proc("meminfo", "HugePages_Total: 4\nHugePages_Free: 4\nHugepagesize: 1048576 kB\n");
  write_proc("self/cgroup", "0::/a\n");
  write_cgroup("cgroup.controllers", "hugetlb\n");
  write_cgroup("a/hugetlb.1GB.max", "1073741824\n");
  expect_named(refusal((std::uint64_t{1} << 30) + 1),
               {cgroup_name("hugetlb.1GB.max", "a"), "2147483648 bytes (2.00 GiB)",
                "resources.limits.hugepages-1Gi"});
}

}  // namespace
}  // namespace kvferry::cpu_tier
