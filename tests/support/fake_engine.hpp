// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/engine_view.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// A content hash that stands for `number`.
inline std::array<std::byte, 32> hash_of(std::uint64_t number) {
  std::array<std::byte, 32> hash{};
  for (std::size_t word = 0; word < 4; ++word) {
    const std::uint64_t mixed = (number + word + 1) * 0x9e3779b97f4a7c15U ^ (number >> 7);
    std::memcpy(hash.data() + word * 8, &mixed, 8);
  }
  return hash;
}

inline cpu_tier::BlockKey key_of(std::uint64_t number, GroupId group = GroupId(0)) {
  return cpu_tier::BlockKey::make(hash_of(number), group);
}

/// A request's block hashes, by numbers.
class FakeHashes final : public BlockHashes {
 public:
  explicit FakeHashes(const std::vector<std::uint64_t>& numbers) { assign(numbers); }

  void assign(const std::vector<std::uint64_t>& numbers) {
    hashes_.clear();
    for (const std::uint64_t number : numbers) append(number);
  }
  void append(std::uint64_t number) { hashes_.push_back(hash_of(number)); }
  /// Takes back all but the first `size`, as a streaming session does.
  void truncate(std::size_t size) { hashes_.resize(size); }
  [[nodiscard]] std::size_t size() const override { return hashes_.size(); }
  [[nodiscard]] std::span<const std::byte> hash(std::size_t index) const override {
    return hashes_.at(index);
  }

 private:
  std::vector<std::array<std::byte, 32>> hashes_;
};

/// The engine's pool: which number each block is cached under.
class FakePool final : public BlockPool {
 public:
  explicit FakePool(std::uint32_t num_blocks) : cached_(num_blocks) {}

  void cache(std::uint32_t block, std::uint64_t number, GroupId group = GroupId(0)) {
    cached_.at(block) = key_of(number, group);
  }
  void reallocate(std::uint32_t block) { cached_.at(block).reset(); }
  [[nodiscard]] bool holds(BlockId block, const cpu_tier::BlockKey& key) const override {
    return this->key(block) == key;
  }
  [[nodiscard]] std::optional<cpu_tier::BlockKey> key(BlockId block) const override {
    const auto& cached = cached_.at(block.value());
    return cached ? std::optional(cached->mixed_with(weights())) : std::nullopt;
  }

 private:
  std::vector<std::optional<cpu_tier::BlockKey>> cached_;
};

inline std::vector<BlockId> blocks_of(const std::vector<std::uint32_t>& numbers) {
  return {numbers.begin(), numbers.end()};
}

}  // namespace kvferry::connector
