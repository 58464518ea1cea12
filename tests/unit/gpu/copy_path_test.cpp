// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/copy_path.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace kvferry::gpu {
namespace {

TEST(CopyPath, NamesGoBothWays) {
  for (const CopyPath path :
       {CopyPath::kPerRun, CopyPath::kBatch, CopyPath::kKernel, CopyPath::kStaged}) {
    EXPECT_EQ(copy_path_from(to_string(path)), path);
  }
  try {
    std::ignore = copy_path_from("fast");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "copy path 'fast' is unknown; known are: per_run, batch, kernel, staged");
  }
}

}  // namespace
}  // namespace kvferry::gpu
