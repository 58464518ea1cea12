// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/shared_tier.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/peers/tier_header.hpp"

#include "byte_sizes.hpp"
#include "complaint.hpp"
#include "shared_tier_fixture.hpp"
#include "tier_path.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

using std::chrono::milliseconds;

SharedTierOptions of_capacity(std::uint64_t capacity_bytes, std::uint32_t num_ranks) {
  return {.path = "/dev/shm/tier", .capacity_bytes = capacity_bytes, .num_ranks = num_ranks};
}

TEST(TierShape, ComesFromTheCapacityAlone) {
  EXPECT_EQ(shape_for(of_capacity(kGiB, 1)), (TierShape{256, 4 * kMiB, 256, 1}));
  EXPECT_EQ(shape_for(of_capacity(3 * kGiB, 1)), (TierShape{384, 8 * kMiB, 512, 1}));
  // Of 8 ranks with 128 GiB each: no larger chunks than that.
  EXPECT_EQ(shape_for(of_capacity(1024 * kGiB, 8)), (TierShape{2048, 64 * kMiB, 4096, 8}));
  EXPECT_EQ(shape_for(of_capacity(8 * kMiB, 1)), (TierShape{128, 64 * kKiB, 64, 1}));
}

TEST(TierShape, WhatCannotBeIsAConfigError) {
  expect_named(
      complaint_of<ConfigError>([] { static_cast<void>(shape_for(of_capacity(kMiB, 64))); }),
      {"1048576 bytes", "64 ranks", "0 chunks of 65536", "cpu_bytes_to_use"});
  EXPECT_THROW(static_cast<void>(shape_for(of_capacity(0, 1))), ConfigError);
  EXPECT_THROW(static_cast<void>(shape_for(of_capacity(kGiB, 0))), ConfigError);
  EXPECT_THROW(static_cast<void>(shape_for(of_capacity(kGiB, kMaxTierRanks + 1))), ConfigError);
  SharedTierOptions odd = of_capacity(kGiB, 1);
  odd.chunk_bytes = 100'000;
  expect_named(complaint_of<ConfigError>([&] { static_cast<void>(shape_for(odd)); }),
               {"100000 bytes (whole pages of 4096)"});
}

TEST_F(SharedTierTest, HasItsMetadataReservedAndItsArenasAsHoles) {
  const auto tier = SharedTier::make_or_open(file_.options(2));
  EXPECT_EQ(tier->shape(), (TierShape{TierPath::kNumChunks, TierPath::kChunkBytes, 64, 2}));
  EXPECT_EQ(tier->metadata().size(), tier->places().arenas);
  EXPECT_EQ(tier->file().reserved_bytes(), tier->places().arenas);
  EXPECT_EQ(tier->file().size_bytes(), tier->places().end);
  EXPECT_EQ(tier->places().rank_tag_bytes, TierPath::kNumChunks * 64 * sizeof(std::uint64_t));
  EXPECT_EQ(tier->tags_offset(1) + tier->places().rank_tag_bytes, tier->places().arenas);
  EXPECT_EQ(tier->arena_bytes(), TierPath::kNumChunks * TierPath::kChunkBytes);
  EXPECT_EQ(tier->arena_offset(1) + tier->arena_bytes(), tier->places().end);
  EXPECT_EQ(tier->missing_arena_bytes(), tier->arena_bytes());
  tier->file().reserve_part(tier->arena_offset(1), tier->arena_bytes());
  EXPECT_EQ(tier->missing_arena_bytes(), tier->arena_bytes() / 2);
}

TEST_F(SharedTierTest, WhatOneWritesAnotherReads) {
  const auto one = open();
  const auto other = open();
  EXPECT_EQ(one->file().inode(), other->file().inode());
  one->metadata()[one->places().slots] = std::byte{42};
  EXPECT_EQ(other->metadata()[one->places().slots], std::byte{42});
}

TEST_F(SharedTierTest, AFileIsTakenAsItIsDividedIfThatIsWanted) {
  const auto tier = open();
  SharedTierOptions other = file_.options();
  other.chunk_bytes *= 2;
  static_cast<void>(refusal(other));
  other.division = Division::kAsFound;
  EXPECT_EQ(SharedTier::make_or_open(other)->shape(), tier->shape());
  other.capacity_bytes *= 2;
  expect_named(refusal(other), {"(1048576 bytes", "(2097152 bytes)"});
}

TEST_F(SharedTierTest, AnotherShapeIsRefusedAndBothAreNamed) {
  const auto tier = open();
  const std::vector<std::string> always{
      "the shared tier " + file_.path.string(),
      "has 16 chunks of 65536 bytes with up to 64 slots each, on 1 rank (1048576 bytes, made by "
      "process " +
          std::to_string(::getpid()),
      "this process was told",
      "the same cpu_bytes_to_use (capacity under LMCache), shared_chunk_bytes and parallel sizes",
      "kvferry tier rm " + file_.path.string(),
      "another shared_path"};
  SharedTierOptions other = file_.options();
  other.capacity_bytes *= 2;
  std::string said = refusal(other);
  expect_named(said, always);
  expect_named(said, {"told 32 chunks of 65536 bytes", "(2097152 bytes)"});
  said = refusal(file_.options(2));
  expect_named(said, always);
  expect_named(said, {"on 2 ranks"});
  other = file_.options();
  other.chunk_bytes = 2 * TierPath::kChunkBytes;
  said = refusal(other);
  expect_named(said, always);
  expect_named(said, {"told 8 chunks of 131072 bytes"});
  EXPECT_EQ(file_.inode(), tier->file().inode());
}

TEST_F(SharedTierTest, AHeaderOfAnotherVersionOrMachineIsRefusedAndBothAreNamed) {
  const auto tier = open();
  constexpr std::size_t kFile = offsetof(TierHeader, file);
  patch(kFile + offsetof(FileHeader, version), TierHeader::kVersion + 76);
  const std::string version = std::to_string(TierHeader::kVersion);
  const std::string other = std::to_string(TierHeader::kVersion + 76);
  expect_named(refusal(file_.options()),
               {"has layout version " + other + ", expected " + version, "tier rm"});
  patch(kFile + offsetof(FileHeader, version), TierHeader::kVersion);
  patch(kFile + offsetof(FileHeader, byte_order), std::uint32_t{0x04030201});
  expect_named(refusal(file_.options()), {"has byte order 67305985, expected 16909060"});
  patch(kFile + offsetof(FileHeader, byte_order), std::uint32_t{0x01020304});
  patch(offsetof(TierHeader, metadata_bytes), std::uint64_t{8192});
  expect_named(refusal(file_.options()), {"has a damaged header", "expected", "tier rm"});
  patch(offsetof(TierHeader, metadata_bytes), tier->places().arenas);
  patch(offsetof(TierHeader, num_chunks), std::uint32_t{17});
  EXPECT_NE(refusal(file_.options()), "");
  patch(offsetof(TierHeader, num_chunks), std::uint32_t{TierPath::kNumChunks});
  ASSERT_NO_THROW(open().reset());
  patch(kFile, std::array{'n', 'o'});
  expect_named(refusal(file_.options()), {"was not made by kvferry for a shared tier"});
}

// Of a kept file: whichever bit of its header is another one, nothing of it is believed.
TEST_F(SharedTierTest, AHeaderWithOneWrongBitIsRefusedAndTheFileStays) {
  const auto tier = SharedTier::make_or_open(file_.kept());
  const TierHeader right = *read_tier_header(tier->file().descriptor());
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&right);
  for (std::size_t bit = 0; bit < 8 * sizeof right; ++bit) {
    // Text is ended there, whatever it was.
    if (bit / 8 == offsetof(TierHeader, made_by) + right.made_by.size() - 1) continue;
    const auto wrong = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << (bit % 8)));
    patch(bit / 8, wrong);
    expect_named(refusal(file_.options()), {file_.path.string(), "name another"});
    EXPECT_EQ(file_.inode(), tier->file().inode()) << "bit " << bit;
    patch(bit / 8, bytes[bit / 8]);
    ASSERT_FALSE(HasFailure()) << "bit " << bit;
  }
  ASSERT_NO_THROW(open().reset());
}

TEST_F(SharedTierTest, ACopyWithoutItsMemoryIsRefused) {
  const auto tier = SharedTier::make_or_open(file_.kept());
  ASSERT_EQ(::fallocate(tier->file().descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(tier->places().slots), 4096),
            0);
  expect_named(refusal(file_.options()), {"bytes reserved, expected", "a copy, or damaged"});
}

TEST_F(SharedTierTest, AFileOfAnotherKindIsRefused) {
  SharedFile stranger = SharedFile::make(file_.path, 4096, file_.machine.root);
  ASSERT_EQ(stranger.publish(), Published::kYes);
  expect_named(refusal(file_.options()), {file_.path.string(), "was not made by kvferry"});
  SharedTierOptions relative = file_.options();
  relative.path = "tier";
  expect_named(refusal(relative), {"shared_path tier is not absolute"});
}

TEST_F(SharedTierTest, OneOfAnEarlierRunOfTheMachineIsReplaced) {
  const std::uint64_t before = SharedTier::make_or_open(file_.kept())->file().inode();
  // Of another version too: nobody can be using it.
  patch(offsetof(TierHeader, file) + offsetof(FileHeader, version), std::uint32_t{77});
  file_.boot("next-boot");
  const auto tier = open();
  EXPECT_NE(tier->file().inode(), before);
  EXPECT_EQ(tier->file().inode(), file_.inode());
}

TEST_F(SharedTierTest, WhatSomebodyHoldsIsNotReplacedWhateverItSays) {
  const auto tier = open();
  file_.boot("next-boot");
  SharedTierOptions impatient = file_.options();
  impatient.patience = milliseconds(20);
  expect_named(
      complaint_of<TimeoutError>([&] { static_cast<void>(SharedTier::make_or_open(impatient)); }),
      {file_.path.string(), "another shared_path"});
  EXPECT_EQ(file_.inode(), tier->file().inode());
}

}  // namespace
}  // namespace kvferry::cpu_tier
