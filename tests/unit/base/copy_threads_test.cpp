// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/copy_threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <string>
#include <thread>
#include <unistd.h>

namespace kvferry {
namespace {

class CopyThreads : public testing::Test {
 protected:
  CopyThreads() { std::filesystem::create_directories(cgroups_ / "cpu"); }
  ~CopyThreads() override { std::filesystem::remove_all(cgroups_); }
  void write(const char* file, const std::string& text) const {
    std::ofstream(cgroups_ / file) << text << '\n';
  }

  const std::filesystem::path cgroups_ =
      std::filesystem::path(testing::TempDir()) / ("kvferry_cgroup_" + std::to_string(::getpid()));
};

TEST_F(CopyThreads, AreNotMoreThanTheAffinityMaskHas) {
  std::uint32_t usable = 0;
  std::thread([&] {
    cpu_set_t mask;
    ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
    EXPECT_EQ(num_usable_processors(cgroups_), static_cast<std::uint32_t>(CPU_COUNT(&mask)));
    int first = 0;
    while (!CPU_ISSET(first, &mask)) ++first;
    CPU_ZERO(&mask);
    CPU_SET(first, &mask);
    ASSERT_EQ(::sched_setaffinity(0, sizeof mask, &mask), 0);
    usable = num_usable_processors(cgroups_);
  }).join();
  EXPECT_EQ(usable, 1U);
}

TEST_F(CopyThreads, AreNotMoreThanTheQuotaPaysFor) {
  const std::uint32_t all = num_usable_processors(cgroups_);
  write("cpu.max", "max 100000");
  EXPECT_EQ(num_usable_processors(cgroups_), all);
  write("cpu.max", "6400000 100000");
  EXPECT_EQ(num_usable_processors(cgroups_), std::min(all, 64U));
  write("cpu.max", "150000 100000");
  EXPECT_EQ(num_usable_processors(cgroups_), 1U);
  write("cpu.max", "50000 100000");
  EXPECT_EQ(num_usable_processors(cgroups_), 1U);
}

TEST_F(CopyThreads, KnowTheQuotaOfTheFirstVersion) {
  const std::uint32_t all = num_usable_processors(cgroups_);
  write("cpu/cpu.cfs_period_us", "100000");
  write("cpu/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(num_usable_processors(cgroups_), all);
  write("cpu/cpu.cfs_quota_us", "100000");
  EXPECT_EQ(num_usable_processors(cgroups_), 1U);
}

}  // namespace
}  // namespace kvferry
