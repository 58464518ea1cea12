// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/tag_sum.hpp"

#include "kvferry/base/streaming_copy.hpp"

#include "row_sum_avx2.hpp"
#include "row_sum_avx512.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace kvferry::gpu {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937_64& random, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& one : bytes) one = static_cast<std::byte>(random());
  return bytes;
}

std::uint64_t splitmix64_at(std::uint64_t number) {
  std::uint64_t z = (number + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/// By the text of the definition, byte by byte.
std::uint64_t defined_sum(const Bytes& block) {
  std::uint64_t sum = 0;
  for (std::uint64_t at = 0; at < block.size(); ++at) {
    const std::uint64_t word = at / 4;
    std::uint64_t column = splitmix64_at(word % 4) | 1;
    for (std::uint64_t i = 0; i < word / 128 % 8; ++i) column *= 6364136223846793005U;
    const std::uint64_t lane = splitmix64_at(4 + word / 4 % 32) | 1;
    const std::uint64_t row = splitmix64_at(36 + word / 1024) | 1;
    sum += (std::to_integer<std::uint64_t>(block[at]) << (8 * (at % 4))) * column * lane * row;
  }
  return sum;
}

std::uint64_t sum_of(const Bytes& block) { return tag_sum(block, 0); }

constexpr std::size_t kSizes[] = {1,    2,    3,     4,     5,     16,    511,    4096,  4097,
                                  8188, 8192, 12289, 16384, 65536, 65537, 100000, 131072};

TEST(TagSum, IsWhatItsDefinitionSays) {
  std::mt19937_64 random(1);
  for (const std::size_t size : kSizes) {
    const Bytes block = random_bytes(random, size);
    EXPECT_EQ(sum_of(block), defined_sum(block)) << size;
  }
  EXPECT_EQ(tag_sum({}, 17), 0U);
}

TEST(TagSum, IsTheSameHoweverABlockIsCut) {
  std::mt19937_64 random(2);
  for (const std::size_t size : kSizes) {
    const Bytes block = random_bytes(random, size);
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<std::size_t> cuts{0, size};
      for (int i = 0; i < 8; ++i) cuts.push_back(random() % (size + 1));
      std::sort(cuts.begin(), cuts.end());
      std::vector<std::size_t> parts(cuts.size() - 1);
      std::iota(parts.begin(), parts.end(), std::size_t{0});
      std::shuffle(parts.begin(), parts.end(), random);
      std::uint64_t sum = 0;
      for (const std::size_t part : parts) {
        // At an alignment of its own.
        Bytes moved(random() % 16);
        const std::size_t shift = moved.size();
        moved.insert(moved.end(), block.begin() + static_cast<std::ptrdiff_t>(cuts[part]),
                     block.begin() + static_cast<std::ptrdiff_t>(cuts[part + 1]));
        sum += tag_sum(std::span(moved).subspan(shift), cuts[part]);
      }
      ASSERT_EQ(sum, sum_of(block)) << size;
    }
  }
}

/// Each instruction set that this processor has, of a whole row.
TEST(TagSum, IsTheSameWithEveryInstructionSet) {
  std::mt19937_64 random(8);
  for (std::uint64_t row = 0; row < 3; ++row) {
    // At an alignment of its own.
    Bytes moved = random_bytes(random, kUnitBytes + row);
    const std::byte* const begin = moved.data() + row;
    Bytes block(row * kUnitBytes);
    block.insert(block.end(), begin, begin + kUnitBytes);
    const std::uint64_t sum = defined_sum(block);
    EXPECT_EQ(sum_of(block), sum);
    alignas(64) std::array<std::byte, kUnitBytes> copied{};
    const auto expect_copy = [&](std::uint64_t of_row) {
      EXPECT_EQ(of_row * tag_row(row), sum);
      finish_streaming();
      EXPECT_TRUE(std::equal(copied.begin(), copied.end(), begin));
      copied.fill({});
    };
    if (has_avx2()) {
      EXPECT_EQ(row_sum_avx2(begin, begin) * tag_row(row), sum);
      expect_copy(stream_row_avx2(copied.data(), begin, begin));
    }
    if (!has_avx512()) continue;
    EXPECT_EQ(row_sum_avx512(begin, begin) * tag_row(row), sum);
    expect_copy(copy_row_avx512(copied.data(), begin, begin));
    expect_copy(stream_row_avx512(copied.data(), begin, begin));
  }
}

class TagSumOfACopy : public testing::TestWithParam<decltype(&copy_and_sum)> {};
INSTANTIATE_TEST_SUITE_P(, TagSumOfACopy,
                         testing::Values(&copy_and_sum, &copy_rows_streaming_and_sum,
                                         &copy_streaming_and_sum));

TEST_P(TagSumOfACopy, IsThatOfWhatIsCopied) {
  std::mt19937_64 random(7);
  for (const std::size_t size : kSizes) {
    const Bytes block = random_bytes(random, size + 15);
    for (int trial = 0; trial < 20; ++trial) {
      const auto from = std::span(block).subspan(random() % 16, size);
      const std::uint64_t offset = trial % 2 == 0 ? 4096 * (random() % 3) : random() % 5000;
      Bytes copied(size + 192, std::byte{0xee});
      // At the beginning of a cache line, and anywhere else.
      const auto place = reinterpret_cast<std::uintptr_t>(copied.data());
      const std::size_t shift = (64 - place % 64) % 64 + (trial % 4 < 2 ? 0 : random() % 64);
      ASSERT_EQ(GetParam()(&copied[shift], from, offset, block.data()), tag_sum(from, offset))
          << size;
      finish_streaming();
      Bytes expected(size + 192, std::byte{0xee});
      std::copy(from.begin(), from.end(), expected.begin() + static_cast<std::ptrdiff_t>(shift));
      ASSERT_TRUE(copied == expected) << size;
    }
  }
}

TEST(TagSum, ChangesWithEveryBit) {
  std::mt19937_64 random(3);
  Bytes block = random_bytes(random, 10'000);
  const std::uint64_t before = sum_of(block);
  for (std::size_t at = 0; at < block.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      const std::byte flipped = block[at] ^ static_cast<std::byte>(1U << bit);
      // Its part alone: the others add the same.
      const std::uint64_t difference =
          tag_sum(std::span(&flipped, 1), at) - tag_sum(std::span(&block[at], 1), at);
      ASSERT_NE(difference, 0U) << at << ' ' << bit;
    }
  }
  block[9'999] ^= std::byte{0x80};
  EXPECT_NE(sum_of(block), before);
}

TEST(TagSum, ChangesWithEveryWordThatChangesPlaces) {
  std::mt19937_64 random(4);
  const Bytes block = random_bytes(random, 32 << 10);
  const auto part = [&](std::size_t from, std::size_t to) {
    return tag_sum(std::span(block).subspan(4 * from, 4), 4 * to);
  };
  for (int trial = 0; trial < 1'000'000; ++trial) {
    const std::size_t one = random() % (block.size() / 4);
    const std::size_t other = random() % (block.size() / 4);
    if (std::memcmp(&block[4 * one], &block[4 * other], 4) == 0) continue;
    ASSERT_NE(part(one, one) + part(other, other), part(one, other) + part(other, one));
  }
}

TEST(TagSum, ChangesWithWhatFaultsDoToBlocks) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    const Bytes block = random_bytes(random, 16 << 10);
    const std::size_t from = random() % block.size();
    const std::size_t size = 1 + random() % (block.size() - from);
    Bytes short_copy = block;  // ends early: what is behind is of the slot's earlier block
    const Bytes earlier = random_bytes(random, size);
    std::copy(earlier.begin(), earlier.end(),
              short_copy.begin() + static_cast<std::ptrdiff_t>(from));
    Bytes zeroed = block;
    std::fill_n(zeroed.begin() + static_cast<std::ptrdiff_t>(from), size, std::byte{0});
    Bytes shifted = block;
    std::rotate(shifted.begin(), shifted.begin() + 1 + static_cast<std::ptrdiff_t>(from / 2),
                shifted.end());
    for (const Bytes& wrong : {short_copy, zeroed, shifted}) {
      if (wrong == block) continue;
      ASSERT_NE(sum_of(wrong), sum_of(block)) << from << ' ' << size;
    }
  }
}

TEST(TagSum, SeesRowsOfTheTopBitsOnly) {
  // The weakest case: in each of two words the top bit alone.
  std::mt19937_64 random(6);
  std::uint64_t num_missed = 0;
  constexpr std::byte kTop{0x80};
  for (int trial = 0; trial < 1'000'000; ++trial) {
    const std::uint64_t one = random() % (1U << 20);
    const std::uint64_t other = random() % (1U << 20);
    if (one == other) continue;
    num_missed +=
        tag_sum(std::span(&kTop, 1), 4 * one + 3) + tag_sum(std::span(&kTop, 1), 4 * other + 3) ==
        0;
  }
  EXPECT_EQ(num_missed, 0U);
}

}  // namespace
}  // namespace kvferry::gpu
