// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/tag_sum.hpp"

#include "kernels/pack_addressing.hpp"
#include "kernels/pack_launch.hpp"
#include "kernels/pack_walk.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace kvferry::gpu {
namespace {

/// Real memory with a count of the stores to each byte.
class CountedMemory {
 public:
  explicit CountedMemory(std::size_t bytes) : bytes_(bytes), counts_(bytes) {}

  [[nodiscard]] std::uintptr_t address() const {
    return reinterpret_cast<std::uintptr_t>(bytes_.data());
  }
  [[nodiscard]] std::vector<std::uint8_t>& bytes() { return bytes_; }
  [[nodiscard]] bool holds(std::uint64_t at, std::uint64_t bytes) const {
    return at >= address() && at + bytes <= address() + bytes_.size();
  }
  void store(std::uint64_t at, const void* from, std::size_t bytes) {
    std::memcpy(bytes_.data() + (at - address()), from, bytes);
    for (std::size_t i = 0; i < bytes; ++i) ++counts_[at - address() + i];
  }
  /// How often each byte was stored.
  [[nodiscard]] const std::vector<std::uint8_t>& counts() const { return counts_; }

 private:
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint8_t> counts_;
};

/// What GlobalAccess is in the kernels, with every access checked.
class CheckedAccess {
 public:
  template <std::uint32_t Width>
  using Vector = std::array<std::uint8_t, Width>;

  CheckedAccess(const CountedMemory& source, CountedMemory& destination)
      : source_(source), destination_(destination) {}

  template <std::uint32_t Width>
  Vector<Width> load(std::uint64_t from) {
    Vector<Width> value{};
    if (from % Width != 0 || !source_.holds(from, Width)) {
      ++num_wrong_;
      return value;
    }
    std::memcpy(value.data(), reinterpret_cast<const void*>(from), Width);
    return value;
  }
  template <std::uint32_t Width>
  void store(std::uint64_t to, Vector<Width> value) {
    if (to % Width != 0 || !destination_.holds(to, Width)) {
      ++num_wrong_;
      return;
    }
    ++num_stores_[Width];
    destination_.store(to, value.data(), Width);
  }
  template <std::uint32_t Width>
  std::uint32_t word(const Vector<Width>& value, std::uint32_t i) {
    std::uint32_t result = 0;
    std::memcpy(&result, value.data() + i * sizeof(result),
                std::min<std::size_t>(Width, sizeof(result)));
    return result;
  }
  void add(std::uint64_t to, std::uint64_t part, std::uint32_t /*lane*/) {
    *reinterpret_cast<std::uint64_t*>(to) += part;
  }
  /// Misaligned, or outside of the memory it belongs to.
  [[nodiscard]] int num_wrong() const { return num_wrong_; }
  [[nodiscard]] int num_stores(std::uint32_t width) const { return num_stores_[width]; }

 private:
  const CountedMemory& source_;
  CountedMemory& destination_;
  int num_wrong_ = 0;
  std::array<int, kMaxWidth + 1> num_stores_{};
};

/// A pool, some of its blocks, and packed memory for them, with a margin on both sides.
struct Case {
  Case(std::mt19937_64& random, std::uint64_t alignment) {
    const auto draw = [&](std::uint64_t low, std::uint64_t high) {
      return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
    };
    constexpr std::array<std::uint64_t, 9> kSizes{1, 17, 64, 496, 512, 1000, 4096, 5008, 20480};
    const auto num_blocks = static_cast<std::uint32_t>(draw(1, 6));
    // Many tiny ones at times: more of them in a unit than a team has lanes.
    const bool tiny = draw(0, 3) == 0;
    const std::uint64_t num_fragments = tiny ? draw(40, 150) : draw(1, 20);
    const auto round_up = [&](std::uint64_t n) {
      return (n + alignment - 1) / alignment * alignment;
    };
    std::vector<Fragment> fragments;
    std::uint64_t offset = alignment * draw(1, 40);
    for (std::uint64_t i = 0; i < num_fragments; ++i) {
      const std::uint64_t some_bytes = draw(0, 3) == 0 ? draw(1, 9000) : kSizes[draw(0, 8)];
      const std::uint64_t bytes = round_up(tiny ? draw(1, 100) : some_bytes);
      const std::uint64_t stride = bytes + alignment * draw(0, 5);
      fragments.push_back({offset, stride, bytes});
      offset += num_blocks * stride + alignment * draw(0, 3);
    }
    pool = std::make_unique<CountedMemory>(offset + 64);
    for (Fragment& fragment : fragments) fragment.base += pool->address();
    geometry = make_block_geometry(fragments, num_blocks);
    for (std::uint32_t b = 0; b < num_blocks; ++b) {
      if (b == 0 || draw(0, 2) != 0) blocks.emplace_back(b);
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    packed_begin = alignment * draw(1, 40);
    packed =
        std::make_unique<CountedMemory>(packed_begin + blocks.size() * geometry.packed_bytes + 64);
    for (CountedMemory* memory : {pool.get(), packed.get()}) {
      std::uint64_t state = random();
      for (std::uint8_t& byte : memory->bytes()) {
        state = state * 6364136223846793005U + 1;
        byte = static_cast<std::uint8_t>(state >> 56U);
      }
    }
    table = fragment_table(geometry);
    arguments = pack_arguments(geometry, reinterpret_cast<std::uintptr_t>(table.data()), blocks,
                               packed->address() + packed_begin);
  }

  /// Checks that a launch moved exactly the bytes it shall. `before` is the destination then.
  void expect_moved(PackWay way, const std::vector<std::uint8_t>& before) {
    const bool gathers = way == PackWay::kGather;
    CountedMemory& destination = gathers ? *packed : *pool;
    std::vector<std::uint8_t> expected = before;
    std::vector<std::uint8_t> counts(before.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      for (std::size_t f = 0; f < geometry.fragments.size(); ++f) {
        const std::uint64_t bytes = geometry.fragments[f].bytes;
        const auto in_pool = geometry.fragment_address(f, blocks[i]) - pool->address();
        const auto in_packed =
            packed_begin + i * geometry.packed_bytes + geometry.packed_offsets[f];
        const std::size_t to = gathers ? in_packed : in_pool;
        const std::uint8_t* from =
            gathers ? pool->bytes().data() + in_pool : packed->bytes().data() + in_packed;
        std::memcpy(expected.data() + to, from, bytes);
        for (std::uint64_t b = 0; b < bytes; ++b) ++counts[to + b];
      }
    }
    ASSERT_TRUE(destination.bytes() == expected);
    ASSERT_TRUE(destination.counts() == counts) << "a byte was stored more than once";
  }

  BlockGeometry geometry;
  std::vector<BlockId> blocks;
  std::unique_ptr<CountedMemory> pool;
  std::unique_ptr<CountedMemory> packed;
  std::uint64_t packed_begin = 0;
  std::vector<FragmentEntry> table;
  PackArguments arguments{};
};

template <WalkWay Way, WalkSums Sums>
void walk(CheckedAccess& access, const Case& c, const PackLaunch& launch) {
  for (std::uint32_t cta = 0; cta < launch.num_ctas; ++cta) {
    for (std::uint32_t thread = 0; thread < launch.threads_per_cta; ++thread) {
      walk_units<Way, Sums>(access, c.arguments,
                            {cta, launch.num_ctas, thread, launch.threads_per_cta});
    }
  }
}

void run_vectors(CheckedAccess& access, const Case& c, PackWay way, const PackLaunch& launch) {
  if (way == PackWay::kGather) {
    walk<WalkWay::kGather, WalkSums::kNo>(access, c, launch);
  } else {
    walk<WalkWay::kScatter, WalkSums::kNo>(access, c, launch);
  }
}

void run_tagged(CheckedAccess& access, const Case& c, PackWay way, const PackLaunch& launch) {
  if (way == PackWay::kGather) {
    walk<WalkWay::kGather, WalkSums::kYes>(access, c, launch);
  } else {
    walk<WalkWay::kScatter, WalkSums::kYes>(access, c, launch);
  }
}

/// The copies of a bulk kernel through one stage; the sizes and addresses that PTX refuses count as
/// wrong.
int run_bulk(Case& c, PackWay way, const PackLaunch& launch) {
  int num_wrong = 0;
  std::vector<std::uint8_t> stage(kBulkUnitBytes);
  const std::uint32_t units = num_units(c.arguments, kBulkUnitBytes);
  for (std::uint32_t cta = 0; cta < launch.num_ctas; ++cta) {
    const UnitShare share = share_of(units, cta, launch.num_ctas);
    std::array<FragmentWindow, kTeamLanes> windows;
    PackUnit unit = unit_at(c.arguments, kBulkUnitBytes, share.first);
    for (std::uint32_t i = 0; i < share.count; ++i) {
      const std::uint64_t packed = packed_address(c.arguments, unit);
      const std::size_t bytes = unit.end - unit.begin;
      if (way == PackWay::kScatter)
        std::memcpy(stage.data(), reinterpret_cast<void*>(packed), bytes);
      for (std::uint32_t lane = 0; lane < kTeamLanes; ++lane) {
        walk_bulk_pieces(c.arguments, unit, lane, windows[lane],
                         [&](const PackPiece& piece, std::uint32_t offset) {
                           if (piece.bytes == 0 ||
                               (piece.pool | piece.packed | piece.bytes | offset) % 16 != 0 ||
                               offset + piece.bytes > kBulkUnitBytes) {
                             ++num_wrong;
                           } else if (way == PackWay::kGather) {
                             std::memcpy(stage.data() + offset, reinterpret_cast<void*>(piece.pool),
                                         piece.bytes);
                           } else {
                             c.pool->store(piece.pool, stage.data() + offset, piece.bytes);
                           }
                         });
      }
      if (way == PackWay::kGather) c.packed->store(packed, stage.data(), bytes);
      unit = unit_after(c.arguments, kBulkUnitBytes, unit);
    }
  }
  return num_wrong;
}

class PackAddressing : public testing::TestWithParam<PackWay> {};

TEST_P(PackAddressing, EveryByteIsMovedOnceByWhateverGridAndAlignment) {
  constexpr std::array<std::uint64_t, 6> kAlignments{1, 2, 4, 8, 16, 32};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Case c(random, kAlignments[seed % kAlignments.size()]);
    const auto num_blocks = static_cast<std::uint32_t>(c.blocks.size());
    const PackTuning tuning{PackKernel::kVector, static_cast<std::uint32_t>(random() % 5), 0};
    const PackLaunch launch =
        plan_pack(c.geometry, num_blocks, c.arguments.packed, GetParam(), {2}, tuning);
    CountedMemory& source = GetParam() == PackWay::kGather ? *c.pool : *c.packed;
    CountedMemory& destination = GetParam() == PackWay::kGather ? *c.packed : *c.pool;
    const std::vector<std::uint8_t> before = destination.bytes();
    CheckedAccess access(source, destination);
    run_vectors(access, c, GetParam(), launch);
    ASSERT_EQ(access.num_wrong(), 0);
    ASSERT_NO_FATAL_FAILURE(c.expect_moved(GetParam(), before));
    if (can_bulk_copy(c.geometry, c.arguments.packed)) {
      EXPECT_EQ(
          access.num_stores(1) + access.num_stores(2) + access.num_stores(4) + access.num_stores(8),
          0)
          << "aligned to 16 bytes";
    }
  }
}

TEST_P(PackAddressing, SumsAreThoseOfThePackedBlocks) {
  constexpr std::array<std::uint64_t, 6> kAlignments{1, 2, 4, 8, 16, 512};
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Case c(random, kAlignments[seed % kAlignments.size()]);
    const auto num_blocks = static_cast<std::uint32_t>(c.blocks.size());
    const PackTuning tuning{PackKernel::kAuto, static_cast<std::uint32_t>(random() % 5), 0};
    const PackLaunch launch = plan_pack(c.geometry, num_blocks, c.arguments.packed, GetParam(), {2},
                                        tuning, PackSums::kYes);
    std::vector<std::uint64_t> sums(num_blocks, 5);
    c.arguments.sums = reinterpret_cast<std::uintptr_t>(sums.data());
    const bool gathers = GetParam() == PackWay::kGather;
    CountedMemory& destination = gathers ? *c.packed : *c.pool;
    const std::vector<std::uint8_t> before = destination.bytes();
    CheckedAccess access(gathers ? *c.pool : *c.packed, destination);
    run_tagged(access, c, GetParam(), launch);
    ASSERT_EQ(access.num_wrong(), 0);
    ASSERT_NO_FATAL_FAILURE(c.expect_moved(GetParam(), before));

    std::vector<std::uint64_t> read(num_blocks, 7);
    c.arguments.sums = reinterpret_cast<std::uintptr_t>(read.data());
    CheckedAccess reading(*c.pool, *c.packed);
    walk<WalkWay::kSum, WalkSums::kYes>(reading, c, launch);
    EXPECT_EQ(reading.num_wrong(), 0);
    const auto packed = std::as_bytes(std::span(c.packed->bytes())).subspan(c.packed_begin);
    const std::uint64_t bytes = c.geometry.packed_bytes;
    for (std::size_t i = 0; i < num_blocks; ++i) {
      const std::uint64_t sum = tag_sum(packed.subspan(i * bytes, bytes), 0);
      ASSERT_EQ(sums[i], sum + 5) << "block " << i;
      ASSERT_EQ(read[i], sum + 7) << "block " << i << ", read alone";
    }
  }
}

TEST_P(PackAddressing, BulkCopiesMoveEveryByteOnceWhereAllIsAligned) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Case c(random, 16);
    ASSERT_TRUE(can_bulk_copy(c.geometry, c.arguments.packed));
    const auto num_blocks = static_cast<std::uint32_t>(c.blocks.size());
    const PackTuning tuning{PackKernel::kBulk, static_cast<std::uint32_t>(random() % 5), 0};
    const PackLaunch launch = plan_pack(c.geometry, num_blocks, c.arguments.packed, GetParam(),
                                        {2, BulkCopy::kYes}, tuning);
    const auto before = GetParam() == PackWay::kGather ? c.packed->bytes() : c.pool->bytes();
    ASSERT_EQ(run_bulk(c, GetParam(), launch), 0);
    ASSERT_NO_FATAL_FAILURE(c.expect_moved(GetParam(), before));
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, PackAddressing, testing::Values(PackWay::kGather, PackWay::kScatter),
                         [](const auto& way) {
                           return way.param == PackWay::kGather ? "Gather" : "Scatter";
                         });

TEST(PackAddressingWidth, IsTheWidestForWhichBothAddressesAreAlignedAlike) {
  static_assert(common_width(0x1000, 0x2000) == 16);
  static_assert(common_width(0x1003, 0x2003) == 16);
  static_assert(common_width(0x1008, 0x2000) == 8);
  static_assert(common_width(0x1002, 0x2006) == 4);
  static_assert(common_width(0x1002, 0x2000) == 2);
  static_assert(common_width(0x1001, 0x2000) == 1);
}

TEST(PackAddressingCut, HeadAndTailAreWhatIsNotAligned) {
  constexpr PieceCut kCut = cut_piece(0x1003, 100, 16);
  static_assert(kCut.head == 13 && kCut.vectors == 5 && kCut.tail == 7);
  constexpr PieceCut kShort = cut_piece(0x1003, 5, 16);
  static_assert(kShort.head == 5 && kShort.vectors == 0 && kShort.tail == 0);
}

}  // namespace
}  // namespace kvferry::gpu
