// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

using Allocator = HugePageAllocator<std::uint64_t>;

TEST(HugePageAllocator, AlignsLargeTablesToHugePages) {
  const std::vector<std::uint64_t, Allocator> table(Allocator::kHugePageBytes, 7);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(table.data()) % Allocator::kHugePageBytes, 0U);
  EXPECT_EQ(table.back(), 7U);
}

TEST(HugePageAllocator, SmallTablesGrowAndShrink) {
  std::vector<std::uint64_t, Allocator> table;
  for (std::uint64_t i = 0; i < 1000; ++i) table.push_back(i);
  table.resize(10);
  table.shrink_to_fit();
  EXPECT_EQ(table.back(), 9U);
}

TEST(HugePageAllocator, SizeThatOverflowsIsBadAlloc) {
  EXPECT_THROW(static_cast<void>(Allocator().allocate(SIZE_MAX / 4)), std::bad_alloc);
}

}  // namespace
}  // namespace kvferry::cpu_tier
