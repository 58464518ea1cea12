// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/boot_id.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <unistd.h>

namespace fs = std::filesystem;

namespace kvferry {
namespace {

TEST(BootId, IsTheKernels) { EXPECT_EQ(present_boot().size(), 36U); }

TEST(BootId, IsEmptyIfTheKernelHasNone) { EXPECT_EQ(present_boot("/no/such/folder"), ""); }

// A kept tier was removed as an earlier boot's.
TEST(BootId, IsNotTakenForAnotherBootsIfItCannotBeRead) {
  const fs::path proc = fs::path(::testing::TempDir()) / ("boot-id-" + std::to_string(::getpid()));
  fs::create_directories(proc / "sys/kernel/random");
  fs::create_symlink("boot_id", proc / "sys/kernel/random/boot_id");
  EXPECT_THROW(static_cast<void>(present_boot(proc)), ResourceError);
  fs::remove_all(proc);
}

}  // namespace
}  // namespace kvferry
