// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/tag_sum.hpp"

#include "device_test.hpp"
#include "pack_shape.hpp"

#include <cstring>
#include <random>
#include <utility>

namespace kvferry::gpu {
namespace {

using Words = std::vector<std::uint64_t>;

constexpr std::size_t kWord = sizeof(std::uint64_t);

/// The sums of gather(), scatter() and sum() over random geometries, held against tag_sum() of the
/// packed blocks, which are worked out from the fragments as they were given.
class SumConformance : public DeviceTest {
 protected:
  static std::vector<std::uint8_t> packed(const PackShape& shape,
                                          const std::vector<std::uint8_t>& pool, BlockId block) {
    std::vector<std::uint8_t> bytes(shape.packed_bytes);
    shape.for_each_piece(block, [&](std::size_t in_pool, std::size_t in_block, std::size_t n) {
      std::memcpy(&bytes[in_block], &pool[in_pool], n);
    });
    return bytes;
  }
  static Words sums_of(const PackShape& shape, const std::vector<std::uint8_t>& pool,
                       const std::vector<BlockId>& blocks) {
    Words sums;
    for (const BlockId block : blocks) {
      const auto bytes = packed(shape, pool, block);
      sums.push_back(tag_sum(std::as_bytes(std::span(bytes)), 0));
    }
    return sums;
  }

  void upload_words(const Words& words, std::uintptr_t address) {
    std::vector<std::uint8_t> bytes(words.size() * kWord);
    std::memcpy(bytes.data(), words.data(), bytes.size());
    upload(bytes, address);
  }
  [[nodiscard]] Words download_words(std::uintptr_t address, std::size_t count) {
    const auto bytes = download(address, count * kWord);
    Words words(count);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    return words;
  }

  /// Words of chance, to which sums are added, with one more word on either side.
  struct Sums {
    Words before;
    std::unique_ptr<DeviceBuffer> memory;
    [[nodiscard]] std::uintptr_t address() const { return memory->address() + kWord; }
    void add(const Words& sums) {
      for (std::size_t i = 0; i < sums.size(); ++i) before[i + 1] += sums[i];
    }
  };
  Sums make_sums(std::size_t count, std::mt19937& random) {
    Sums sums;
    for (std::size_t i = 0; i < count + 2; ++i) {
      sums.before.push_back(std::uint64_t{random()} << 32U | random());
    }
    sums.memory = device().allocate(sums.before.size() * kWord);
    upload_words(sums.before, sums.memory->address());
    return sums;
  }
  /// `sums` as they shall be now.
  void expect_words(const Sums& sums) {
    EXPECT_EQ(download_words(sums.memory->address(), sums.before.size()), sums.before);
  }

  /// Sums while gathering, of the pool alone, and while scattering.
  void expect_sums(const PackShape& shape, std::size_t num_blocks, std::mt19937& random) {
    const auto from = any_blocks(shape, num_blocks, random);
    const auto to = different_blocks(shape, num_blocks, random);
    const auto contents = pattern(shape.pool_bytes, static_cast<std::uint8_t>(random()));
    const auto pool = device().allocate(shape.pool_bytes);
    const auto target = device().allocate(shape.pool_bytes);
    upload(contents, pool->address());
    const auto memory = device().allocate(num_blocks * shape.packed_bytes + 32);
    const std::uintptr_t staging = memory->address() + random() % 32;
    Sums gathered = make_sums(from.size(), random);
    Sums read = make_sums(from.size(), random);
    Sums scattered = make_sums(to.size(), random);

    const auto stream = device().create_stream();
    const auto ended = device().create_event();
    const auto geometry = shape.geometry(pool->address());
    stream->gather(geometry, from, staging, gathered.address());
    stream->sum(geometry, from, read.address());
    stream->scatter(shape.geometry(target->address()), to, staging, scattered.address());
    stream->record(*ended);
    ASSERT_EQ(ended->wait(kHang), EventState::kDone) << ended->failure();

    const Words expected = sums_of(shape, contents, from);
    gathered.add(expected);
    read.add(expected);
    scattered.add({expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(to.size())});
    expect_words(gathered);
    expect_words(read);
    expect_words(scattered);
    // What is moved is moved as without sums.
    std::vector<std::uint8_t> moved;
    for (const BlockId block : from) {
      const auto bytes = packed(shape, contents, block);
      moved.insert(moved.end(), bytes.begin(), bytes.end());
    }
    EXPECT_TRUE(download(staging, moved.size()) == moved);
    const auto unpacked = download(target->address(), shape.pool_bytes);
    for (std::size_t i = 0; i < to.size(); ++i) {
      EXPECT_TRUE(packed(shape, unpacked, to[i]) == packed(shape, contents, from[i]));
    }
    EXPECT_TRUE(download(pool->address(), shape.pool_bytes) == contents);
  }
};
KVFERRY_INSTANTIATE_CONFORMANCE(SumConformance);

TEST_P(SumConformance, AreAddedOverRandomGeometries) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const PackShape shape = random_pack_shape(random);
    expect_sums(shape, random_num_blocks(shape, random), random);
    if (HasFailure()) return;
  }
}

TEST_P(SumConformance, AreThoseOfEveryFragmentSizeAtEveryAlignment) {
  std::mt19937 random(12);
  for (const std::uint64_t around : {16U, 512U, 4096U}) {
    const PackShape shape = shape_of_sizes_around(around);
    for (int round = 0; round < 2; ++round) expect_sums(shape, 5, random);
    if (HasFailure()) return;
  }
}

// Whole rows and vectors, at every place of a row.
TEST_P(SumConformance, AreThoseOfAlignedFragmentsAtEveryPlace) {
  std::mt19937 random(13);
  for (const std::uint64_t bytes : {16U, 48U, 512U, 1024U, 2064U, 4096U, 4112U, 16'384U}) {
    PackShape shape;
    shape.num_blocks = 3;
    for (int i = 0; i < 9; ++i) shape.add(0, bytes, bytes + 16);
    expect_sums(shape, 3, random);
    if (HasFailure()) return;
  }
}

TEST_P(SumConformance, AreThoseOfFragmentsBeyond64KiB) {
  std::mt19937 random(14);
  for (const std::uint64_t bytes : {65'536U, 65'537U, 131'075U}) {
    const PackShape shape = shape_with_large_fragment(bytes);
    expect_sums(shape, 2, random);
    if (HasFailure()) return;
  }
}

// More than one launch takes on the drivers (960).
TEST_P(SumConformance, AreThoseOfMoreBlocksThanOneLaunchTakes) {
  std::mt19937 random(15);
  for (const std::size_t num_blocks : {960U, 961U, 1921U}) {
    const PackShape shape = shape_of_many_blocks(num_blocks);
    expect_sums(shape, num_blocks, random);
    if (HasFailure()) return;
  }
}

TEST_P(SumConformance, AreThoseOfManyFragments) {
  std::mt19937 random(16);
  const PackShape shape = shape_of_many_fragments();
  expect_sums(shape, 2, random);
}

// A tag is made of one stream's sums, yet no addition may be lost where two meet.
TEST_P(SumConformance, OfTwoStreamsMeetInOneWord) {
  constexpr int kTimes = 20;
  std::mt19937 random(17);
  PackShape shape;
  shape.num_blocks = 8;
  shape.add(0, 4096, 4096);
  const auto contents = pattern(shape.pool_bytes, 1);
  const auto pool = device().allocate(shape.pool_bytes);
  upload(contents, pool->address());
  const auto geometry = shape.geometry(pool->address());
  device().prepare(geometry);
  const auto blocks = different_blocks(shape, shape.num_blocks, random);
  Sums sums = make_sums(blocks.size(), random);
  const auto one = device().create_stream();
  const auto other = device().create_stream();
  for (int i = 0; i < kTimes; ++i) {
    one->sum(geometry, blocks, sums.address());
    other->sum(geometry, blocks, sums.address());
    for (int each = 0; each < 2; ++each) sums.add(sums_of(shape, contents, blocks));
  }
  ASSERT_TRUE(one->synchronize(kHang));
  ASSERT_TRUE(other->synchronize(kHang));
  expect_words(sums);
}

TEST_P(SumConformance, AreMadeInStreamOrder) {
  std::mt19937 random(18);
  PackShape shape;
  shape.num_blocks = 4;
  shape.add(0, 5000, 5000);
  const auto contents = pattern(shape.pool_bytes, 2);
  const auto pool = device().allocate(shape.pool_bytes);
  upload(contents, pool->address());
  const auto geometry = shape.geometry(pool->address());
  const auto blocks = different_blocks(shape, shape.num_blocks, random);
  Sums sums = make_sums(blocks.size(), random);
  const auto stream = device().create_stream();
  device().prepare(geometry);
  Hold hold(under_test(), *stream);
  stream->fill(sums.memory->address(), 0, sums.memory->size_bytes());
  stream->sum(geometry, blocks, sums.address());
  stream->fill(pool->address(), 0, shape.pool_bytes);
  stream->sum(geometry, blocks, sums.address());
  hold.release();
  ASSERT_TRUE(stream->synchronize(kHang));
  sums.before.assign(sums.before.size(), 0);
  sums.add(sums_of(shape, contents, blocks));  // a block of zeros has the sum 0
  expect_words(sums);
}

TEST_P(SumConformance, OfNoBlocksAreNoWork) {
  std::mt19937 random(19);
  const auto pool = device().allocate(64);
  const auto geometry = make_block_geometry({{pool->address(), 64, 64}}, 1);
  const Sums sums = make_sums(1, random);
  const auto stream = device().create_stream();
  stream->gather(geometry, {}, 0, sums.address());
  stream->scatter(geometry, {}, 0, sums.address());
  stream->sum(geometry, {}, sums.address());
  ASSERT_TRUE(stream->synchronize(kHang));
  expect_words(sums);
}

TEST_P(SumConformance, AreNotAddedAtAnOddAddressNorNowhere) {
  const auto memory = device().allocate(256);
  const auto geometry = make_block_geometry({{memory->address(), 64, 64}}, 1);
  const std::vector<BlockId> blocks{BlockId(0)};
  const std::uintptr_t packed = memory->address() + 64;
  const auto stream = device().create_stream();
  for (const std::uintptr_t odd : {1U, 4U, 7U}) {
    const std::uintptr_t sums = memory->address() + 128 + odd;
    EXPECT_THROW(stream->gather(geometry, blocks, packed, sums), DeviceError);
    EXPECT_THROW(stream->scatter(geometry, blocks, packed, sums), DeviceError);
    EXPECT_THROW(stream->sum(geometry, blocks, sums), DeviceError);
  }
  EXPECT_THROW(stream->sum(geometry, blocks, 0), DeviceError);
  EXPECT_THROW(stream->sum(geometry, std::vector{BlockId(1)}, memory->address() + 128),
               DeviceError);
}

}  // namespace
}  // namespace kvferry::gpu
