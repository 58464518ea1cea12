// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/memlock_limit.hpp"

#include "other_process.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

namespace kvferry::cpu_tier {
namespace {

TEST(MemlockLimit, WarnsOfMoreThanTheLimitWithBothFiguresAndTheCommand) {
  const auto warning = memlock_warning(8193, 8192);
  ASSERT_TRUE(warning.has_value());
  for (const char* part : {"8193 bytes", "RLIMIT_MEMLOCK is 8192", "ulimit -l unlimited"}) {
    EXPECT_NE(warning->find(part), std::string::npos) << part << " is not in: " << *warning;
  }
}

TEST(MemlockLimit, IsSilentWithinTheLimitOrWithoutOne) {
  EXPECT_EQ(memlock_warning(8192, 8192), std::nullopt);
  EXPECT_EQ(memlock_warning(std::uint64_t{1} << 40, std::nullopt), std::nullopt);
}

TEST(MemlockLimit, IsThatOfThisProcess) {
  const int status = in_a_process([] {
    rlimit limit{};
    ::getrlimit(RLIMIT_MEMLOCK, &limit);
    limit.rlim_cur = 4096;
    const bool lowered = ::setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
    const bool seen = memlock_limit_bytes() == 4096U && memlock_warning(4097).has_value() &&
                      !memlock_warning(4096).has_value();
    return lowered && seen ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace kvferry::cpu_tier
