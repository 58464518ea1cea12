// SPDX-License-Identifier: Apache-2.0
#include "populator.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "byte_sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <sched.h>
#include <sys/mman.h>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

std::uint64_t resident_bytes(const HostMapping& mapping) {
  const std::uint64_t page = HostMapping::page_bytes();
  std::vector<unsigned char> resident(mapping.size_bytes() / page);
  EXPECT_EQ(::mincore(mapping.bytes().data(), mapping.size_bytes(), resident.data()), 0);
  return page * static_cast<std::uint64_t>(std::count(resident.begin(), resident.end(), 1));
}

TEST(Populator, MakesExactlyItsPartResident) {
  for (const std::uint32_t threads : {0U, 1U, 2U, 5U}) {
    const HostMapping mapping(100 * kMiB, PageKind::kNormal);
    const Populator populator({}, threads);
    EXPECT_GE(populator.num_threads(), 1U);
    EXPECT_TRUE(populator.populate(mapping, mapping.bytes().subspan(kMiB, 70 * kMiB)));
    EXPECT_EQ(resident_bytes(mapping), 70 * kMiB);
    EXPECT_TRUE(populator.populate(mapping, mapping.bytes().first(0)));
  }
}

TEST(Populator, IsStoppedBetweenChunks) {
  const HostMapping mapping(100 * kMiB, PageKind::kNormal);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(Populator({}, 2).populate(mapping, mapping.bytes(), stop.get_token()));
  EXPECT_EQ(resident_bytes(mapping), 0U);
}

TEST(Populator, ThreadsAreBoundNoLongerThanTheyWork) {
  const auto topology = std::make_shared<const MachineTopology>();
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  for (const NumaNode& node : topology->nodes()) {
    if (node.num_cpus == 0) continue;
    const HostMapping mapping(40 * kMiB, PageKind::kNormal);
    EXPECT_TRUE(Populator({topology, node.number, "a test"}).populate(mapping, mapping.bytes()));
    cpu_set_t after;
    ASSERT_EQ(::sched_getaffinity(0, sizeof(after), &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
    EXPECT_EQ(topology->share_on(mapping.bytes(), node.number).value_or(1.0), 1.0);
  }
}

#ifdef KVFERRY_TEST_HOOKS
TEST(Populator, AShortageOfOneThreadIsTheCallersError) {
  const HostMapping mapping(100 * kMiB, PageKind::kNormal);
  for (const std::uint64_t nth : {1U, 4U, 7U}) {
    test_hooks::fail_nth_of("arena.populate", nth);
    EXPECT_THROW(static_cast<void>(Populator({}, 2).populate(mapping, mapping.bytes())),
                 ResourceError);
    test_hooks::reset();
  }
  EXPECT_TRUE(Populator({}, 2).populate(mapping, mapping.bytes()));
}
#endif

}  // namespace
}  // namespace kvferry::cpu_tier
