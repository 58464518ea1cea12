// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/boot_id.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

namespace kvferry {
namespace {

TEST(BootId, IsTheKernels) { EXPECT_EQ(present_boot().size(), 36U); }

TEST(BootId, IsEmptyIfTheKernelHasNone) { EXPECT_EQ(present_boot("/no/such/folder"), ""); }

// A kept tier was removed as an earlier boot's.
TEST(BootId, IsNotTakenForAnotherBootsIfItCannotBeRead) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_THROW(static_cast<void>(present_boot()), ResourceError);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace
}  // namespace kvferry
