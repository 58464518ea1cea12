// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"
#include "pack_shape.hpp"

#include <cstring>
#include <random>
#include <utility>

namespace kvferry::gpu {
namespace {

constexpr std::uint8_t kUntouched = 0xee;
constexpr std::size_t kGuardBytes = 64;

/// Gather and scatter over random geometries. What they shall do is worked out from the fragments
/// as they were given, without the library's arithmetic.
class PackSweepConformance : public DeviceTest {
 protected:
  using Shape = PackShape;

  /// Gathers blocks (some of them twice) of one pool and scatters them over another one; every byte
  /// of the packed blocks, of both pools and around them is checked.
  void expect_packed(const Shape& shape, std::size_t num_gathered, std::mt19937& random) {
    const std::vector<BlockId> from = any_blocks(shape, num_gathered, random);
    const std::vector<BlockId> to = different_blocks(shape, num_gathered, random);

    const auto source_bytes = pattern(shape.pool_bytes, static_cast<std::uint8_t>(random()));
    auto target_bytes = pattern(shape.pool_bytes, static_cast<std::uint8_t>(random()));
    const auto source = device().allocate(shape.pool_bytes);
    const auto target = device().allocate(shape.pool_bytes);
    upload(source_bytes, source->address());
    upload(target_bytes, target->address());
    const std::size_t offset = kGuardBytes + random() % 32;
    const std::size_t packed_end = offset + num_gathered * shape.packed_bytes;
    const auto packed = device().allocate(packed_end + kGuardBytes);

    const auto stream = device().create_stream();
    const auto ended = device().create_event();
    stream->fill(packed->address(), kUntouched, packed->size_bytes());
    stream->gather(shape.geometry(source->address()), from, packed->address() + offset);
    stream->scatter(shape.geometry(target->address()), to, packed->address() + offset);
    stream->record(*ended);
    ASSERT_EQ(ended->wait(kHang), EventState::kDone) << ended->failure();

    std::vector<std::uint8_t> packed_bytes(packed->size_bytes(), kUntouched);
    for (std::size_t i = 0; i < from.size(); ++i) {
      shape.for_each_piece(from[i], [&](std::size_t in_pool, std::size_t in_block, std::size_t n) {
        std::memcpy(&packed_bytes[offset + i * shape.packed_bytes + in_block],
                    &source_bytes[in_pool], n);
      });
    }
    for (std::size_t i = 0; i < to.size(); ++i) {
      shape.for_each_piece(to[i], [&](std::size_t in_pool, std::size_t in_block, std::size_t n) {
        std::memcpy(&target_bytes[in_pool],
                    &packed_bytes[offset + i * shape.packed_bytes + in_block], n);
      });
    }
    // Not EXPECT_EQ, which would print megabytes.
    EXPECT_TRUE(download(packed->address(), packed->size_bytes()) == packed_bytes);
    EXPECT_TRUE(download(target->address(), shape.pool_bytes) == target_bytes);
    EXPECT_TRUE(download(source->address(), shape.pool_bytes) == source_bytes);
  }
};
KVFERRY_INSTANTIATE_CONFORMANCE(PackSweepConformance);

TEST_P(PackSweepConformance, RandomGeometriesArePackedAndUnpackedToTheByte) {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const Shape shape = random_pack_shape(random);
    expect_packed(shape, random_num_blocks(shape, random), random);
    if (HasFailure()) return;
  }
}

TEST_P(PackSweepConformance, EveryFragmentSizeAtEveryAlignment) {
  std::mt19937 random(2);
  for (const std::uint64_t around : {16U, 32U, 512U, 4096U}) {
    const Shape shape = shape_of_sizes_around(around);
    for (int round = 0; round < 3; ++round) expect_packed(shape, 5, random);
    if (HasFailure()) return;
  }
}

TEST_P(PackSweepConformance, FragmentsBeyond64KiB) {
  std::mt19937 random(3);
  for (const std::uint64_t bytes : {65'535U, 65'536U, 65'537U, 131'075U}) {
    const Shape shape = shape_with_large_fragment(bytes);
    expect_packed(shape, 2, random);
    if (HasFailure()) return;
  }
}

// More than one launch takes on the drivers (960).
TEST_P(PackSweepConformance, MoreBlocksThanOneLaunchTakes) {
  std::mt19937 random(4);
  for (const std::size_t num_blocks : {959U, 960U, 961U, 1921U}) {
    const Shape shape = shape_of_many_blocks(num_blocks);
    expect_packed(shape, num_blocks, random);
    if (HasFailure()) return;
  }
}

TEST_P(PackSweepConformance, ManyFragmentsOfOneBlock) {
  std::mt19937 random(5);
  const Shape shape = shape_of_many_fragments();
  expect_packed(shape, 2, random);
}

// Keys and values of a layer side by side, blocks between them: no fragment lies alone in its
// range.
TEST_P(PackSweepConformance, FragmentsThatInterleave) {
  constexpr std::uint64_t kBlockBytes = 6 * 112;
  Shape shape;
  shape.num_blocks = 9;
  for (std::uint64_t i = 0; i < 6; ++i) {
    shape.fragments.push_back({i * 112, kBlockBytes, 100});
    shape.packed_bytes += 100;
  }
  shape.pool_bytes = shape.num_blocks * kBlockBytes;
  std::mt19937 random(6);
  expect_packed(shape, 9, random);
}

}  // namespace
}  // namespace kvferry::gpu
