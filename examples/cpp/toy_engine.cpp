// SPDX-License-Identifier: Apache-2.0
#include "toy_engine.hpp"

#include <algorithm>
#include <cstring>

namespace {

/// A byte that tells block contents, layers and offsets from each other.
std::uint8_t byte_of(std::uint64_t content, std::uint64_t position) {
  return static_cast<std::uint8_t>(((content << 20) + position + 1) * 0x9e3779b97f4a7c15U >> 56);
}

}  // namespace

KvCache::KvCache(std::uint32_t num_blocks)
    : num_blocks_(num_blocks), bytes_(num_blocks * kBlockBytes) {}

kvferry::gpu::BlockGeometry KvCache::geometry() const {
  std::vector<kvferry::gpu::Fragment> fragments;
  for (std::uint64_t layer = 0; layer < kNumLayers; ++layer) {
    const auto* first = bytes_.data() + layer * num_blocks_ * kLayerBytes;
    fragments.push_back({.base = reinterpret_cast<std::uintptr_t>(first),
                         .block_stride_bytes = kLayerBytes,
                         .bytes = kLayerBytes});
  }
  return kvferry::gpu::make_block_geometry(std::move(fragments), num_blocks_);
}

void KvCache::compute(kvferry::BlockId block, std::uint64_t content) {
  for (std::uint64_t i = 0; i < kBlockBytes; ++i) {
    const std::uint64_t layer = i / kLayerBytes;
    bytes_[(layer * num_blocks_ + block.value()) * kLayerBytes + i % kLayerBytes] =
        byte_of(content, i);
  }
}

bool KvCache::holds(kvferry::BlockId block, std::uint64_t content) const {
  for (std::uint64_t i = 0; i < kBlockBytes; ++i) {
    const std::uint64_t layer = i / kLayerBytes;
    if (bytes_[(layer * num_blocks_ + block.value()) * kLayerBytes + i % kLayerBytes] !=
        byte_of(content, i)) {
      return false;
    }
  }
  return true;
}

void KvCache::overwrite() { std::ranges::fill(bytes_, std::uint8_t{0xee}); }

RequestHashes::RequestHashes(const std::vector<std::uint64_t>& contents) {
  for (const std::uint64_t content : contents) {
    std::memcpy(hashes_.emplace_back().data(), &content, sizeof content);
  }
}
