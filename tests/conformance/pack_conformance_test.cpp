// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

namespace kvferry::gpu {
namespace {

constexpr std::uint32_t kNumBlocks = 11;

// Two layers of one pool that do not touch, with odd sizes, strides and bases.
constexpr std::uint64_t kFirstBase = 3;
constexpr std::uint64_t kFirstStride = 37;
constexpr std::uint64_t kFirstBytes = 29;
constexpr std::uint64_t kSecondBase = 701;
constexpr std::uint64_t kSecondStride = 1021;
constexpr std::uint64_t kSecondBytes = 1013;
constexpr std::size_t kPoolBytes = kSecondBase + kNumBlocks * kSecondStride;
constexpr std::size_t kPackedBytes = kFirstBytes + kSecondBytes;

class PackConformance : public DeviceTest {
 protected:
  static BlockGeometry geometry(const DeviceBuffer& pool) {
    return make_block_geometry({{pool.address() + kFirstBase, kFirstStride, kFirstBytes},
                                {pool.address() + kSecondBase, kSecondStride, kSecondBytes}},
                               kNumBlocks);
  }
  static std::vector<BlockId> blocks(std::initializer_list<std::uint32_t> ids) {
    std::vector<BlockId> result;
    for (const std::uint32_t id : ids) result.emplace_back(id);
    return result;
  }
  /// What gather() shall make of `pool`, worked out here byte by byte.
  static std::vector<std::uint8_t> packed(const std::vector<std::uint8_t>& pool,
                                          const std::vector<BlockId>& ids) {
    std::vector<std::uint8_t> result;
    for (const BlockId id : ids) {
      for (std::uint64_t i = 0; i < kFirstBytes; ++i) {
        result.push_back(pool[kFirstBase + id.value() * kFirstStride + i]);
      }
      for (std::uint64_t i = 0; i < kSecondBytes; ++i) {
        result.push_back(pool[kSecondBase + id.value() * kSecondStride + i]);
      }
    }
    return result;
  }
};
KVFERRY_INSTANTIATE_CONFORMANCE(PackConformance);

TEST_P(PackConformance, GatherPacksBlocksInTheOrderGiven) {
  const auto pool = device().allocate(kPoolBytes);
  const auto contents = pattern(kPoolBytes, 1);
  upload(contents, pool->address());
  const auto ids = blocks({7, 0, 10, 3});
  const auto staging = device().allocate(ids.size() * kPackedBytes + 2);
  const auto stream = device().create_stream();
  stream->fill(staging->address(), 0xee, staging->size_bytes());
  stream->gather(geometry(*pool), ids, staging->address() + 1);
  ASSERT_TRUE(stream->synchronize(kHang));
  auto expected = packed(contents, ids);
  expected.insert(expected.begin(), 0xee);
  expected.push_back(0xee);
  EXPECT_EQ(download(staging->address(), staging->size_bytes()), expected);
  EXPECT_EQ(download(pool->address(), kPoolBytes), contents);
}

TEST_P(PackConformance, ScatterIsTheReverseAndTouchesNothingElse) {
  const auto source = device().allocate(kPoolBytes);
  const auto target = device().allocate(kPoolBytes);
  const auto source_contents = pattern(kPoolBytes, 2);
  auto target_contents = pattern(kPoolBytes, 3);
  upload(source_contents, source->address());
  upload(target_contents, target->address());
  const auto from = blocks({9, 2, 5});
  const auto to = blocks({0, 10, 4});
  const auto staging = device().allocate(from.size() * kPackedBytes);
  const auto stream = device().create_stream();
  stream->gather(geometry(*source), from, staging->address());
  stream->scatter(geometry(*target), to, staging->address());
  ASSERT_TRUE(stream->synchronize(kHang));

  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::uint64_t a = from[i].value();
    const std::uint64_t b = to[i].value();
    for (std::uint64_t j = 0; j < kFirstBytes; ++j) {
      target_contents[kFirstBase + b * kFirstStride + j] =
          source_contents[kFirstBase + a * kFirstStride + j];
    }
    for (std::uint64_t j = 0; j < kSecondBytes; ++j) {
      target_contents[kSecondBase + b * kSecondStride + j] =
          source_contents[kSecondBase + a * kSecondStride + j];
    }
  }
  EXPECT_EQ(download(target->address(), kPoolBytes), target_contents);
}

TEST_P(PackConformance, TakesCopiesOfGeometryAndBlocks) {
  const auto pool = device().allocate(kPoolBytes);
  const auto contents = pattern(kPoolBytes, 4);
  upload(contents, pool->address());
  const auto staging = device().allocate(2 * kPackedBytes);
  const auto stream = device().create_stream();
  device().prepare(geometry(*pool));
  Hold hold(under_test(), *stream);
  {
    auto short_lived_geometry = geometry(*pool);
    auto short_lived_blocks = blocks({1, 6});
    stream->gather(short_lived_geometry, short_lived_blocks, staging->address());
    short_lived_geometry.fragments.clear();
    short_lived_blocks.assign(2, BlockId(0));
  }
  hold.release();
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(download(staging->address(), 2 * kPackedBytes), packed(contents, blocks({1, 6})));
}

TEST_P(PackConformance, RejectsABlockOutsideTheGeometry) {
  const auto pool = device().allocate(kPoolBytes);
  const auto staging = device().allocate(2 * kPackedBytes);
  const auto stream = device().create_stream();
  const auto ids = blocks({0, kNumBlocks});
  EXPECT_THROW(stream->gather(geometry(*pool), ids, staging->address()), DeviceError);
  EXPECT_THROW(stream->scatter(geometry(*pool), ids, staging->address()), DeviceError);
}

TEST_P(PackConformance, NoBlocksAreNoWork) {
  const auto pool = device().allocate(kPoolBytes);
  const auto contents = pattern(kPoolBytes, 5);
  upload(contents, pool->address());
  const auto stream = device().create_stream();
  const auto ended = device().create_event();
  stream->scatter(geometry(*pool), {}, 0);
  stream->gather(geometry(*pool), {}, 0);
  stream->record(*ended);
  EXPECT_EQ(ended->wait(kHang), EventState::kDone);
  EXPECT_EQ(download(pool->address(), kPoolBytes), contents);
}

}  // namespace
}  // namespace kvferry::gpu
