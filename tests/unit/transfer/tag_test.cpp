// SPDX-License-Identifier: Apache-2.0
// G11: a load brings back what was stored, or says that it does not.
#include "kvferry/base/deadline.hpp"

#include "check_sampler.hpp"
#include "rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::transfer {
namespace {

using gpu::CopyPath;
using Kind = Valve::Kind;

constexpr std::uint32_t kNumSlots = 160;

/// Blocks 0 to `count` - 1 into the slots of the same numbers, with identities of their own.
std::vector<BlockSlot> identified(std::uint32_t count) {
  std::vector<BlockSlot> blocks = blocks_to_slots(0, 0, count);
  for (BlockSlot& block : blocks) block.identity = 0x5bd1e995ULL * (block.slot.value() + 1);
  return blocks;
}

class TagTest : public TransferTest, public ::testing::WithParamInterface<CopyPath> {
 protected:
  TagTest() : TagTest(Verification::kAll) {}
  explicit TagTest(Verification verify)
      : rig_({.transfer = {.staging_bytes = 1 << 16,
                           .piece_bytes = 5 * Rig::kSlotBytes,
                           .copy_path = GetParam(),
                           .load_staging_bytes = 1 << 13,
                           .verify = verify},
              .tags = true}) {}

  void store(SlabClassId slab_class, std::span<const BlockSlot> blocks) {
    for (const BlockSlot& block : blocks) {
      rig_.write_block(slab_class, block.block, ++version_);
    }
    ASSERT_EQ(rig_.store(++transfer_, slab_class, {blocks.begin(), blocks.end()}), blocks.size());
    ASSERT_EQ(rig_.finish_one().outcome, Outcome::kDone);
  }
  Completion load(SlabClassId slab_class, std::span<const BlockSlot> blocks) {
    rig_.load(++transfer_, slab_class, {blocks.begin(), blocks.end()});
    return rig_.finish_one();
  }
  std::uint8_t* bytes_of(SlabClassId slab_class, SlotId slot) {
    const std::uintptr_t address = rig_.classes[slab_class.value()].slots.address(slot);
    return reinterpret_cast<std::uint8_t*>(address);  // NOLINT(performance-no-int-to-ptr)
  }
  void expect_damaged(SlabClassId slab_class, std::span<const BlockSlot> blocks,
                      const std::vector<std::uint32_t>& slots) {
    const Completion end = load(slab_class, blocks);
    EXPECT_EQ(end.outcome, Outcome::kFailed);
    EXPECT_TRUE(end.reason.starts_with("damaged block: slot ")) << end.reason;
    std::vector<DamagedSlot> expected;
    expected.reserve(slots.size());
    for (const std::uint32_t slot : slots) expected.push_back({slab_class, SlotId(slot)});
    EXPECT_EQ(end.damaged, expected);
  }

  Rig rig_;
  std::uint64_t transfer_ = 0;
  std::uint64_t version_ = 0;
};

constexpr std::array kPaths{CopyPath::kPerRun, CopyPath::kBatch, CopyPath::kKernel,
                            CopyPath::kStaged};
const auto kName = [](const ::testing::TestParamInfo<CopyPath>& instance) {
  return std::string(gpu::to_string(instance.param));
};
INSTANTIATE_TEST_SUITE_P(Paths, TagTest, ::testing::ValuesIn(kPaths), kName);

TEST_P(TagTest, WhatWasStoredIsLoadedHoweverOftenAndInWhateverParts) {
  for (const SlabClassId slab_class : {Rig::kStrided, Rig::kDense, Rig::kOdd}) {
    const std::vector<BlockSlot> blocks = identified(24);
    store(slab_class, blocks);
    for (const std::size_t first : {0, 1, 13}) {
      std::vector<BlockSlot> part(blocks.begin() + static_cast<std::ptrdiff_t>(first),
                                  blocks.end());
      for (BlockSlot& block : part) block.block = BlockId(block.block.value() + 30);
      const Completion end = load(slab_class, part);
      EXPECT_EQ(end.outcome, Outcome::kDone) << end.reason;
      EXPECT_TRUE(end.damaged.empty());
    }
  }
}

TEST_P(TagTest, AFlippedBitAnywhereIsFound) {
  std::mt19937 random(7);
  for (const SlabClassId slab_class : {Rig::kStrided, Rig::kDense, Rig::kOdd}) {
    const std::vector<BlockSlot> blocks = identified(12);
    store(slab_class, blocks);
    for (std::uint32_t i = 0; i < 60; ++i) {
      const SlotId slot(static_cast<std::uint32_t>(random() % 12));
      std::uint8_t& byte = bytes_of(slab_class, slot)[random() % rig_.packed_bytes(slab_class)];
      const auto bit = static_cast<std::uint8_t>(1U << random() % 8);
      byte ^= bit;
      expect_damaged(slab_class, blocks, {slot.value()});
      byte ^= bit;
    }
    EXPECT_EQ(load(slab_class, blocks).outcome, Outcome::kDone);
  }
}

TEST_P(TagTest, BlocksThatChangedPlacesAreFound) {
  const std::vector<BlockSlot> blocks = identified(8);
  store(Rig::kDense, blocks);
  std::swap_ranges(bytes_of(Rig::kDense, SlotId(2)), bytes_of(Rig::kDense, SlotId(3)),
                   bytes_of(Rig::kDense, SlotId(4)));
  expect_damaged(Rig::kDense, blocks, {2, 4});
}

// As if a store had gone to the wrong slot, with its tag.
TEST_P(TagTest, AnotherBlockWithItsTagIsFound) {
  const std::vector<BlockSlot> blocks = identified(8);
  store(Rig::kDense, blocks);
  std::memcpy(bytes_of(Rig::kDense, SlotId(6)), bytes_of(Rig::kDense, SlotId(1)), Rig::kSlotBytes);
  const cpu_tier::ArenaSlots& slots = rig_.classes[Rig::kDense.value()].slots;
  slots.tag(SlotId(6)).store(slots.tag(SlotId(1)).load());
  expect_damaged(Rig::kDense, blocks, {6});
}

TEST_P(TagTest, AnEarlierVersionIsFound) {
  const std::vector<BlockSlot> blocks = identified(8);
  store(Rig::kDense, blocks);
  const Bytes earlier = rig_.slot(Rig::kDense, SlotId(3));
  store(Rig::kDense, blocks);
  std::copy(earlier.begin(), earlier.end(), bytes_of(Rig::kDense, SlotId(3)));
  expect_damaged(Rig::kDense, blocks, {3});
}

// A store that says that it is done and has written nothing.
TEST_P(TagTest, ASlotThatNobodyWroteIsFoundByItsEarlierTag) {
  std::vector<BlockSlot> blocks = identified(8);
  store(Rig::kDense, blocks);
  blocks[4].identity = 99;
  expect_damaged(Rig::kDense, blocks, {4});
}

TEST_P(TagTest, SeveralPiecesNameAllThatTheyFound) {
  const std::vector<BlockSlot> blocks = identified(40);
  store(Rig::kStrided, blocks);
  for (const std::uint32_t slot : {0, 1, 4}) ++*bytes_of(Rig::kStrided, SlotId(slot));
  // Pieces of five blocks; once a piece has failed, those that wait are dropped.
  const std::span<const BlockSlot> one_piece(blocks.data(), 5);
  expect_damaged(Rig::kStrided, one_piece, {0, 1, 4});
  EXPECT_EQ(load(Rig::kStrided, blocks).outcome, Outcome::kFailed);
}

TEST_P(TagTest, WhatHasNoTagIsLoadedUnchecked) {
  const std::vector<BlockSlot> blocks = identified(4);
  rig_.write_slot(Rig::kDense, SlotId(1), 77);
  EXPECT_EQ(load(Rig::kDense, blocks).outcome, Outcome::kDone);
  EXPECT_EQ(rig_.block(Rig::kDense, BlockId(1)), pattern_bytes(77, Rig::kSlotBytes));
}

TEST_P(TagTest, AFailedCheckFailsTheLoadAlone) {
  if (GetParam() == CopyPath::kKernel || GetParam() == CopyPath::kStaged) GTEST_SKIP() << "scatter";
  const std::vector<BlockSlot> blocks = identified(3);
  store(Rig::kDense, blocks);
  rig_.valve.fail_nth(Kind::kGather, 1);
  const Completion end = load(Rig::kDense, blocks);
  EXPECT_EQ(end.outcome, Outcome::kFailed);
  EXPECT_TRUE(end.reason.starts_with("check: ")) << end.reason;
  EXPECT_TRUE(end.damaged.empty());
  EXPECT_EQ(load(Rig::kDense, blocks).outcome, Outcome::kDone);
}

// More pieces than there are places for their sums.
TEST_P(TagTest, LoadsWaitForPlacesOfSums) {
  const std::vector<BlockSlot> blocks = identified(60);
  store(Rig::kDense, blocks);
  for (const BlockSlot& block : blocks) {
    rig_.load(++transfer_, Rig::kDense, {block});
  }
  const std::vector<Completion> ends = rig_.finish();
  EXPECT_EQ(ends.size(), blocks.size());
  for (const Completion& end : ends) EXPECT_EQ(end.outcome, Outcome::kDone) << end.reason;
}

/// Nobody forces a path here.
class CheckedPathTest : public TransferTest {
 protected:
  static RigOptions options() {
    RigOptions options{.fragment_bytes = {{64 << 10}},
                       .registration_bytes = 64 << 20,
                       .transfer = {.staging_bytes = 8 << 20, .verify = Verification::kAll},
                       .tags = true};
    options.transfer.piece_bytes = 4 << 20;
    return options;
  }
  /// Stores blocks into these slots, loads them, and returns how many scatters that took.
  static std::uint64_t num_scatters(const RigOptions& options, std::uint32_t slot_step) {
    Rig rig(options);
    std::vector<BlockSlot> blocks = blocks_to_slots(0, 0, 40);
    for (BlockSlot& block : blocks) {
      block.slot = SlotId(slot_step * block.block.value());
      block.identity = 1 + block.slot.value();
      rig.write_block(SlabClassId(0), block.block, block.identity);
    }
    EXPECT_EQ(rig.store(1, SlabClassId(0), blocks), blocks.size());
    EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
    for (BlockSlot& block : blocks) rig.write_block(SlabClassId(0), block.block, 0);
    rig.load(2, SlabClassId(0), blocks);
    EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
    for (const BlockSlot& block : blocks) {
      EXPECT_EQ(rig.block(SlabClassId(0), block.block), pattern_bytes(block.identity, 64 << 10));
    }
    return rig.valve.num_arrived(Kind::kScatter);
  }
};

TEST_F(CheckedPathTest, ConsecutiveSlotsAreCheckedWhileTheyAreScattered) {
  EXPECT_EQ(num_scatters(options(), 1), 1U);
}

// Scatters of one block each would not be shared by threads.
TEST_F(CheckedPathTest, ScatteredSlotsAreCopiedAndThenChecked) {
  EXPECT_EQ(num_scatters(options(), 3), 0U);
}

TEST_F(CheckedPathTest, WhatIsNotCheckedIsCopied) {
  RigOptions unchecked = options();
  unchecked.transfer.verify = Verification::kOff;
  EXPECT_EQ(num_scatters(unchecked, 1), 0U);
}

// The simulated link does not know of scatters.
TEST_F(CheckedPathTest, OnASimulatedLinkLoadsAreCopies) {
  RigOptions linked = options();
  linked.link.latency = std::chrono::microseconds(1);
  EXPECT_EQ(num_scatters(linked, 1), 0U);
  linked.link = {.fail_probability = 1e-9};
  EXPECT_EQ(num_scatters(linked, 1), 0U);
}

class SampledTagTest : public TagTest {
 protected:
  SampledTagTest() : TagTest(Verification::kSampled) {}
  bool is_found(std::span<const BlockSlot> blocks) {
    return load(Rig::kDense, blocks).outcome == Outcome::kFailed;
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, SampledTagTest, ::testing::ValuesIn(kPaths), kName);

TEST_P(SampledTagTest, DamageOfOurOwnBlocksIsFoundInOneOfTheFirstLoads) {
  const std::vector<BlockSlot> blocks = identified(4);
  store(Rig::kDense, blocks);
  ++*bytes_of(Rig::kDense, SlotId(3));
  std::uint32_t num_found = 0;
  for (std::uint32_t i = 0; i < 2 * CheckSampler::kMinPeriod; ++i) num_found += is_found(blocks);
  EXPECT_EQ(num_found, 2U) << "the costs are not known after so few loads";
}

// Another engine stores into a shared slot: only the bytes and the tag change.
TEST_P(SampledTagTest, TheFirstLoadOfAnotherEnginesBlockIsChecked) {
  const std::vector<BlockSlot> blocks = identified(4);
  store(Rig::kDense, blocks);
  std::atomic<std::uint64_t>& tag = rig_.classes[Rig::kDense.value()].slots.tag(SlotId(3));
  for (std::uint64_t i = 1; i < 6; ++i) {
    tag.store(i);
    EXPECT_TRUE(is_found(blocks)) << "load " << i;
  }
}

TEST_P(SampledTagTest, WhatWasFoundRightOnceIsAsGoodAsOurOwn) {
  std::vector<BlockSlot> blocks = identified(4);
  store(Rig::kDense, blocks);
  const cpu_tier::ArenaSlots& slots = rig_.classes[Rig::kDense.value()].slots;
  // As if another engine had stored the same bytes for another block.
  const std::uint64_t identity = 0x1234567;
  slots.tag(SlotId(3)).store(slots.tag(SlotId(3)).load() ^ blocks[3].identity ^ identity);
  blocks[3].identity = identity;
  ASSERT_FALSE(is_found(blocks));
  ++*bytes_of(Rig::kDense, SlotId(3));
  std::uint32_t num_found = 0;
  for (std::uint32_t i = 0; i < CheckSampler::kMinPeriod; ++i) num_found += is_found(blocks);
  EXPECT_EQ(num_found, 1U) << "by the period only";
}

/// As memory that fails: no access that ThreadSanitizer should know of.
__attribute__((noinline, no_sanitize("thread"))) void damage(std::uintptr_t address) {
  auto* const byte = reinterpret_cast<volatile std::uint8_t*>(address);  // NOLINT
  *byte = static_cast<std::uint8_t>(*byte + 1);
}

/// Its engine reads again as fast as it can. Its classes share chunks, of 1, 2 and 4 slots.
class ScrubTest : public TransferTest {
 protected:
  ScrubTest()
      : rig_({.slots_per_chunk = {1, 2, 4},
              .transfer = {.staging_bytes = 1 << 16,
                           .verify = Verification::kAll,
                           .scrub_bandwidth = std::uint64_t{1} << 40},
              .tags = true}) {}

  /// Waits for so many more slots to be read; returns what was found.
  std::vector<DamagedSlot> findings_of(std::uint64_t num_slots) {
    const auto num_read = [this] { return rig_.engine->stats().scrubbed_slots; };
    const std::uint64_t end = num_read() + num_slots;
    for (const Deadline deadline(kForever); num_read() < end && !deadline.passed();) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    EXPECT_GE(num_read(), end);
    return rig_.engine->take_scrub_findings();
  }
  void store(SlabClassId slab_class, const std::vector<BlockSlot>& blocks) {
    for (const BlockSlot& block : blocks) rig_.write_block(slab_class, block.block, ++version_);
    ASSERT_EQ(rig_.store(++transfer_, slab_class, blocks), blocks.size());
    ASSERT_EQ(rig_.finish_one().outcome, Outcome::kDone);
  }
  std::uintptr_t address_of(SlabClassId slab_class, SlotId slot) {
    return rig_.classes[slab_class.value()].slots.address(slot);
  }

  Rig rig_;
  std::uint64_t transfer_ = 0;
  std::uint64_t version_ = 0;
};

TEST_F(ScrubTest, WhatWasStoredIsReadAgainAndIsWhole) {
  store(Rig::kDense, identified(8));
  EXPECT_TRUE(findings_of(100).empty());
}

TEST_F(ScrubTest, ADamagedSlotIsFoundOnceUntilItIsWrittenAgain) {
  const std::vector<BlockSlot> blocks = identified(8);
  store(Rig::kDense, blocks);
  damage(address_of(Rig::kDense, SlotId(5)));
  const std::vector<DamagedSlot> expected{{Rig::kDense, SlotId(5)}};
  EXPECT_EQ(findings_of(20), expected);
  EXPECT_TRUE(findings_of(20).empty());
  store(Rig::kDense, blocks);
  EXPECT_TRUE(findings_of(20).empty());
}

TEST_F(ScrubTest, WhatNoStoreWroteIsNotRead) {
  store(Rig::kDense, identified(2));
  damage(address_of(Rig::kDense, SlotId(3)));
  EXPECT_TRUE(findings_of(20).empty());
}

TEST_F(ScrubTest, WhatAnotherClassHasWrittenOverIsNotRead) {
  store(Rig::kOdd, identified(8));  // Chunks 0 and 1.
  const std::vector<BlockSlot> other = identified(1);
  store(Rig::kDense, other);  // Half of chunk 0, whose other slots have their tags still.
  EXPECT_TRUE(findings_of(50).empty());
  EXPECT_EQ(rig_.slot(Rig::kDense, SlotId(0)), pattern_bytes(version_, Rig::kSlotBytes));
}

class NoTagTest : public TagTest {
 protected:
  NoTagTest() : TagTest(Verification::kOff) {}
};
INSTANTIATE_TEST_SUITE_P(Paths, NoTagTest, ::testing::ValuesIn(kPaths), kName);

TEST_P(NoTagTest, AStoreWithoutTagsLeavesNoOldOne) {
  const cpu_tier::ArenaSlots& slots = rig_.classes[Rig::kDense.value()].slots;
  for (std::uint32_t i = 0; i < kNumSlots; ++i) slots.tag(SlotId(i)).store(5);
  store(Rig::kDense, identified(8));
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_EQ(slots.tag(SlotId(i)).load(), 0U);
  EXPECT_EQ(slots.tag(SlotId(8)).load(), 5U);
  EXPECT_EQ(rig_.valve.num_arrived(Kind::kFill), 0U) << "no sums are made";
}

TEST_P(NoTagTest, DamageIsNotLookedFor) {
  const std::vector<BlockSlot> blocks = identified(8);
  store(Rig::kDense, blocks);
  ++*bytes_of(Rig::kDense, SlotId(3));
  EXPECT_EQ(load(Rig::kDense, blocks).outcome, Outcome::kDone);
}

}  // namespace
}  // namespace kvferry::transfer
