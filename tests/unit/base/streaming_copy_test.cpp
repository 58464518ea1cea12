// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/streaming_copy.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace kvferry {
namespace {

TEST(StreamingCopy, WritesTheBytesAndNoOthers) {
  constexpr std::size_t kBytes = 1024;
  constexpr auto kUntouched = std::byte{0xee};
  std::vector<std::byte> source(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::byte>(i * 7 % 251);
  // Every alignment of both ends within a cache line, and every size around the steps.
  for (std::size_t to = 0; to < 66; ++to) {
    for (const std::size_t from : {std::size_t{0}, std::size_t{1}, std::size_t{31}}) {
      for (const std::size_t bytes : {0U, 1U, 63U, 64U, 65U, 127U, 128U, 129U, 192U, 500U, 900U}) {
        std::vector<std::byte> target(kBytes, kUntouched);
        copy_streaming(target.data() + to, source.data() + from, bytes);
        finish_streaming();
        ASSERT_EQ(std::memcmp(target.data() + to, source.data() + from, bytes), 0)
            << to << ' ' << from << ' ' << bytes;
        for (std::size_t i = 0; i < kBytes; ++i) {
          if (i >= to && i < to + bytes) continue;
          ASSERT_EQ(target[i], kUntouched) << to << ' ' << from << ' ' << bytes << " at " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvferry
