// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/host_mapping.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "byte_sizes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

// How often the kernel is to be short of something.
std::atomic<int> num_refusals_left{0};  // NOLINT(readability-identifier-naming)
constexpr int kPopulateWrite = 23;

}  // namespace

/// In the place of the C library's in this program.
extern "C" int madvise(void* begin, std::size_t bytes, int advice) noexcept {
  if (advice == kPopulateWrite && num_refusals_left > 0) {
    --num_refusals_left;
    errno = EAGAIN;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_madvise, begin, bytes, advice));
}

namespace kvferry::cpu_tier {
namespace {

/// The line `field` of the mapping that `address` lies in, from /proc/self/smaps; empty if there is
/// none.
std::string smaps_field(std::uintptr_t address, const std::string& field) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= address && address < end;
    }
    if (inside && line.starts_with(field)) return line;
  }
  return {};
}

TEST(HostMapping, RoundsUpToWholePages) {
  const std::uint64_t page = HostMapping::page_bytes();
  EXPECT_EQ(HostMapping(1).size_bytes(), page);
  EXPECT_EQ(HostMapping(page).size_bytes(), page);
  EXPECT_EQ(HostMapping(page + 1).size_bytes(), 2 * page);
  EXPECT_EQ(HostMapping(1).address() % page, 0U);
}

TEST(HostMapping, TouchesNothingBeforeItIsPopulated) {
  HostMapping mapping(std::uint64_t{64} << 20);
  EXPECT_NE(smaps_field(mapping.address(), "Rss:").find(" 0 kB"), std::string::npos);
  mapping.populate();
  EXPECT_NE(smaps_field(mapping.address(), "Rss:").find(" 65536 kB"), std::string::npos);
}

TEST(HostMapping, BeginsWhereAHugePageDoes) {
  const std::uint64_t huge_page = huge_page_pool().page_bytes;
  for (const PageKind pages : {PageKind::kNormal, PageKind::kTransparent}) {
    EXPECT_EQ(HostMapping(1, pages).address() % huge_page, 0U) << to_string(pages);
  }
}

TEST(HostMapping, PopulatesAndReleasesParts) {
  const HostMapping mapping(64 * kMiB, PageKind::kNormal);
  const auto part = mapping.bytes().subspan(8 * kMiB, 16 * kMiB);
  mapping.populate(part);
  EXPECT_EQ(smaps_field(mapping.address(), "Rss:"), "Rss:               16384 kB");
  part[0] = std::byte{1};
  mapping.release(part.first(4 * kMiB));
  EXPECT_EQ(smaps_field(mapping.address(), "Rss:"), "Rss:               12288 kB");
  EXPECT_EQ(part[0], std::byte{0});
}

TEST(HostMapping, NormalPagesAreNoHugeOnes) {
  const HostMapping mapping(std::uint64_t{64} << 20, PageKind::kNormal);
  mapping.populate();
  EXPECT_EQ(huge_page_share(mapping.bytes()), 0.0);
}

TEST(HostMapping, MoreThanThePoolHasIsAResourceError) {
  const HugePagePool pool = huge_page_pool();
  EXPECT_THROW(HostMapping(pool.free_bytes() + 1, PageKind::kPool), ResourceError);
}

TEST(HostMapping, IsAbsentFromForkedChildren) {
  const HostMapping mapping(1 << 20);
  EXPECT_NE(smaps_field(mapping.address(), "VmFlags:").find(" dc"), std::string::npos);
}

TEST(HostMapping, IsUnmappedByItsDestructor) {
  std::uintptr_t address = 0;
  {
    const HostMapping mapping(std::uint64_t{64} << 20);
    address = mapping.address();
    ASSERT_FALSE(smaps_field(address, "Size:").empty());
  }
  EXPECT_TRUE(smaps_field(address, "Size:").empty());
}

TEST(HostMapping, SizeThatCannotBeMappedIsAResourceError) {
  EXPECT_THROW(HostMapping{std::numeric_limits<std::uint64_t>::max()}, ResourceError);
  EXPECT_THROW(HostMapping{std::uint64_t{1} << 62}, ResourceError);
}

TEST(HostMapping, ShortageThatPassesIsWaitedFor) {
  const HostMapping mapping(1 << 20, PageKind::kNormal);
  num_refusals_left = 3;
  mapping.populate();
  EXPECT_EQ(num_refusals_left, 0);
  EXPECT_EQ(smaps_field(mapping.address(), "Rss:"), "Rss:                1024 kB");
}

TEST(HostMapping, ShortageThatDoesNotPassIsAResourceError) {
  const HostMapping mapping(1 << 20);
  num_refusals_left = 1'000'000;
  try {
    mapping.populate();
    ADD_FAILURE() << "it was populated";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find("short of a resource for a second"), std::string::npos)
        << error.what();
  }
  num_refusals_left = 0;
}

#ifdef KVFERRY_TEST_HOOKS
TEST(HostMapping, ShortageWhilePopulatingIsAResourceError) {
  HostMapping mapping(1 << 20);
  test_hooks::fail_nth_of("arena.populate", 1);
  EXPECT_THROW(mapping.populate(), ResourceError);
  mapping.populate();
  test_hooks::reset();
}
#endif

}  // namespace
}  // namespace kvferry::cpu_tier
