// SPDX-License-Identifier: Apache-2.0
#include "measure/pattern.hpp"

#include "measure/verifier.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvferry::bench {
namespace {

constexpr PatternKey kKey{7};

std::vector<std::byte> pattern(std::size_t size, PatternKey key, std::uint64_t offset) {
  std::vector<std::byte> bytes(size);
  write_pattern(PatternPiece{bytes, offset}, key);
  return bytes;
}

PatternPieces one_piece(std::vector<std::byte>& bytes, std::uint64_t offset) {
  return {1, [&bytes, offset](std::size_t) { return PatternPiece{bytes, offset}; }};
}

TEST(Pattern, AnyPartIsWhatTheWholeHasThere) {
  const auto whole = pattern(20000, kKey, 0);
  for (const std::size_t offset : {0, 1, 7, 8, 4095, 4096, 9999}) {
    for (const std::size_t size : {1, 7, 8, 9, 4096, 5000}) {
      const auto part = pattern(size, kKey, offset);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + offset))
          << size << " at " << offset;
    }
  }
}

TEST(Pattern, EverySpoiledByteIsFound) {
  auto bytes = pattern(5000, kKey, 3);
  EXPECT_FALSE(find_mismatch(one_piece(bytes, 3), kKey));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x80};
    const auto found = find_mismatch(one_piece(bytes, 3), kKey);
    ASSERT_TRUE(found) << i;
    EXPECT_EQ(found->index, i);
    bytes[i] ^= std::byte{0x80};
  }
}

TEST(Pattern, WhatIsStaleOrElsewhereDoesNotPass) {
  auto bytes = pattern(64, pattern_key(1, 1), 512);
  EXPECT_TRUE(find_mismatch(one_piece(bytes, 512), pattern_key(1, 2))) << "an earlier round's";
  EXPECT_TRUE(find_mismatch(one_piece(bytes, 1024), pattern_key(1, 1))) << "another place's";
}

TEST(Pattern, LargeRangesAndManyPiecesAreWrittenAndCheckedByThreads) {
  constexpr std::size_t kPiece = 1000;
  std::vector<std::byte> bytes(9000 * kPiece);
  const PatternPieces pieces{
      9000, [&](std::size_t i) {
        return PatternPiece{std::span(bytes).subspan(i * kPiece, kPiece), i * kPiece};
      }};
  write_pattern(pieces, kKey);
  EXPECT_EQ(bytes, pattern(bytes.size(), kKey, 0));
  bytes[8000 * kPiece + 3] ^= std::byte{1};
  bytes[100 * kPiece + 5] ^= std::byte{1};
  const auto found = find_mismatch(pieces, kKey);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->piece, 100U);
  EXPECT_EQ(found->index, 5U);
}

TEST(Pattern, AByteOfOneLargePieceIsFoundWhereItIs) {
  auto bytes = pattern(5 << 20, kKey, 12);
  EXPECT_FALSE(find_mismatch(one_piece(bytes, 12), kKey));
  constexpr std::size_t kSpoiled = (3 << 20) + 77;
  bytes[kSpoiled] ^= std::byte{4};
  const auto found = find_mismatch(one_piece(bytes, 12), kKey);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, kSpoiled);
}

TEST(VerifierTest, NamesTheRoundAndCountsEveryMismatch) {
  Verifier verifier(1, 2);
  for (int round = 1; round <= 3; ++round) {
    const PatternKey key = verifier.next_round();
    auto bytes = pattern(100, key, 0);
    verifier.check(one_piece(bytes, 0), key, "block");
    EXPECT_EQ(verifier.num_mismatches(), round < 2 ? 0U : 1U);
  }
  EXPECT_EQ(verifier.first_mismatch(), "round 2: block 1 of 1: byte 50 of 100 is wrong");
}

}  // namespace
}  // namespace kvferry::bench
