// SPDX-License-Identifier: Apache-2.0
#include "options/sizes.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

namespace kvferry::bench {
namespace {

TEST(Sizes, KibIsAPowerOfTwoAndKbOfTen) {
  EXPECT_EQ(bytes_from("4096"), 4096U);
  EXPECT_EQ(bytes_from("8KiB"), 8192U);
  EXPECT_EQ(bytes_from("1.5 MiB"), 3U << 19U);
  EXPECT_EQ(bytes_from("1GB"), 1000000000U);
  EXPECT_DOUBLE_EQ(rate_from("4GB/s"), 4e9);
  EXPECT_DOUBLE_EQ(rate_from("0.5GB"), 5e8);
}

TEST(Sizes, WhatIsNoSizeIsRefusedWithExamples) {
  for (const char* text : {"", "KiB", "8 K", "-1", "0", "0.5", "1e30", "8KiB!", "inf"}) {
    EXPECT_THROW(static_cast<void>(bytes_from(text)), ConfigError) << text;
  }
  try {
    static_cast<void>(bytes_from("8 kilo"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("8KiB"), std::string::npos) << error.what();
  }
}

TEST(Sizes, TextIsExact) {
  EXPECT_EQ(bytes_text(8192), "8 KiB");
  EXPECT_EQ(bytes_text(8193), "8193 B");
  EXPECT_EQ(bytes_text(std::uint64_t{3} << 30U), "3 GiB");
}

}  // namespace
}  // namespace kvferry::bench
