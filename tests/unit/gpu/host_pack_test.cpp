// SPDX-License-Identifier: Apache-2.0
// Gathers, scatters and sums so large that several threads share them.
#include "kvferry/gpu/block_geometry.hpp"
#include "kvferry/gpu/host_link.hpp"
#include "kvferry/gpu/tag_sum.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace kvferry::gpu {
namespace {

struct Shape {
  std::string name;
  std::vector<std::uint64_t> fragment_bytes;
  std::uint32_t num_blocks = 0;
};

class HostPack : public testing::TestWithParam<Shape> {
 protected:
  /// The layers lie one after the other in the pool, each with a gap between its blocks.
  void SetUp() override {
    std::vector<Fragment> layouts;
    std::uint64_t pool_bytes = 0;
    for (const std::uint64_t bytes : GetParam().fragment_bytes) {
      pool_bytes += (bytes + kGap) * GetParam().num_blocks;
    }
    pool_ = device_->allocate(pool_bytes);
    std::uintptr_t layer = pool_->address();
    for (const std::uint64_t bytes : GetParam().fragment_bytes) {
      layouts.push_back({.base = layer, .block_stride_bytes = bytes + kGap, .bytes = bytes});
      layer += (bytes + kGap) * GetParam().num_blocks;
    }
    geometry_ = make_block_geometry(layouts, GetParam().num_blocks);
    for (std::uint32_t b = GetParam().num_blocks; b-- > 0;) blocks_.emplace_back(b);
    packed_ = device_->allocate(geometry_.packed_bytes * blocks_.size());
    sums_ = device_->allocate(blocks_.size() * sizeof(std::uint64_t));
    clear_sums();
    std::mt19937_64 random(11);
    for (std::uint64_t& word : std::span(words_of(*pool_), pool_bytes / sizeof(std::uint64_t))) {
      word = random();
    }
  }

  static std::uint64_t* words_of(const DeviceBuffer& buffer) {
    return reinterpret_cast<std::uint64_t*>(buffer.address());  // NOLINT(performance-no-int-to-ptr)
  }
  static std::span<const std::byte> bytes_at(std::uintptr_t address, std::uint64_t bytes) {
    return {reinterpret_cast<const std::byte*>(address), bytes};  // NOLINT
  }
  void clear_sums() { stream_->fill(sums_->address(), 0, sums_->size_bytes()); }
  [[nodiscard]] std::span<const std::byte> packed(std::size_t index) const {
    return bytes_at(packed_->address() + index * geometry_.packed_bytes, geometry_.packed_bytes);
  }
  void expect_sums_of_packed(const char* what) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      ASSERT_EQ(words_of(*sums_)[i], tag_sum(packed(i), 0)) << what << ' ' << i;
    }
    clear_sums();
  }
  void expect_packed_is_pool(const char* what) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      for (std::size_t f = 0; f < geometry_.fragments.size(); ++f) {
        const std::uint64_t bytes = geometry_.fragments[f].bytes;
        const auto in_pool = bytes_at(geometry_.fragment_address(f, blocks_[i]), bytes);
        const auto in_packed = packed(i).subspan(geometry_.packed_offsets[f], bytes);
        ASSERT_EQ(std::memcmp(in_pool.data(), in_packed.data(), bytes), 0)
            << what << ' ' << i << ' ' << f;
      }
    }
  }

  static constexpr std::uint64_t kGap = 64;
  const std::unique_ptr<Device> device_ = make_host_device();
  const std::unique_ptr<Stream> stream_ = device_->view_stream(0);
  std::unique_ptr<DeviceBuffer> pool_;
  std::unique_ptr<DeviceBuffer> packed_;
  std::unique_ptr<DeviceBuffer> sums_;
  BlockGeometry geometry_;
  std::vector<BlockId> blocks_;
};

const Shape kShapes[] = {
    {"whole_rows", {8192}, 200},          {"many_layers", {16384, 16384, 4096}, 40},
    {"odd_sizes", {5001, 17, 9000}, 100}, {"few_large_blocks", {(1U << 20U) + 96}, 3},
    {"one_block", {3U << 20U}, 1},
};
INSTANTIATE_TEST_SUITE_P(, HostPack, testing::ValuesIn(kShapes),
                         [](const testing::TestParamInfo<Shape>& shape) {
                           return shape.param.name;
                         });

TEST_P(HostPack, MovesEveryByteAndSumsIt) {
  ASSERT_GE(geometry_.packed_bytes * blocks_.size(), BatchCopy::kSharedBytes);
  stream_->gather(geometry_, blocks_, packed_->address(), sums_->address());
  expect_packed_is_pool("gather");
  expect_sums_of_packed("gather");
  stream_->sum(geometry_, blocks_, sums_->address());
  expect_sums_of_packed("sum");
  stream_->fill(pool_->address(), 0xee, pool_->size_bytes());
  stream_->scatter(geometry_, blocks_, packed_->address(), sums_->address());
  expect_packed_is_pool("scatter");
  expect_sums_of_packed("scatter");
  // The gaps belong to nobody.
  const std::vector<std::byte> untouched(kGap, std::byte{0xee});
  for (std::size_t f = 0; f < geometry_.fragments.size(); ++f) {
    for (const BlockId block : blocks_) {
      const std::uintptr_t gap =
          geometry_.fragment_address(f, block) + geometry_.fragments[f].bytes;
      ASSERT_EQ(std::memcmp(bytes_at(gap, kGap).data(), untouched.data(), kGap), 0);
    }
  }
  stream_->fill(pool_->address(), 0, pool_->size_bytes());
  stream_->scatter(geometry_, blocks_, packed_->address());
  expect_packed_is_pool("scatter without sums");
}

}  // namespace
}  // namespace kvferry::gpu
