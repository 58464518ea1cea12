// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/engine_view.hpp"

#include "fake_engine.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace kvferry::connector {

/// The block that stands for one that slid out of a window; in an engine with windows nobody gets
/// it.
inline constexpr std::uint32_t kToyNull = 0;

/// What the engine caches a block under: a number that stands for its content (fake_engine.hpp) and
/// its KV cache group.
struct ToyHash {
  std::uint64_t number = 0;
  std::uint32_t group = 0;
  auto operator<=>(const ToyHash&) const = default;
};

/// A block pool with a prefix cache as vLLM's, one for all groups: blocks are counted, freed ones
/// keep their hash and queue up at the end of the free list, allocation takes from its head and
/// evicts.
class ToyPool final : public BlockPool {
 public:
  explicit ToyPool(std::uint32_t num_blocks) : blocks_(num_blocks) {
    for (std::uint32_t i = 0; i < num_blocks; ++i) free_.push_back(i);
  }

  [[nodiscard]] std::uint32_t num_free() const { return static_cast<std::uint32_t>(free_.size()); }
  [[nodiscard]] bool is_free(std::uint32_t block) const { return blocks_[block].num_users == 0; }
  [[nodiscard]] std::uint32_t num_users(std::uint32_t block) const {
    return blocks_[block].num_users;
  }
  [[nodiscard]] std::optional<std::uint32_t> find(const ToyHash& hash) const {
    const auto found = cached_.find(hash);
    if (found == cached_.end()) return std::nullopt;
    return *found->second.begin();
  }
  [[nodiscard]] bool holds(BlockId block, const cpu_tier::BlockKey& key) const override {
    const auto& hash = blocks_.at(block.value()).hash;
    return hash && key_of(hash->number, GroupId(hash->group)) == key;
  }
  [[nodiscard]] std::optional<cpu_tier::BlockKey> key(BlockId block) const override {
    const auto& hash = blocks_.at(block.value()).hash;
    if (!hash) return std::nullopt;
    return key_of(hash->number, GroupId(hash->group));
  }

  [[nodiscard]] std::uint32_t allocate() {
    const std::uint32_t block = free_.front();
    free_.pop_front();
    uncache(block);
    blocks_[block].num_users = 1;
    return block;
  }
  void touch(std::uint32_t block) {
    if (blocks_[block].num_users++ == 0) std::erase(free_, block);
  }
  void release(std::uint32_t block) {
    if (--blocks_[block].num_users == 0) free_.push_back(block);
  }
  void cache(std::uint32_t block, const ToyHash& hash) {
    if (blocks_[block].hash) return;
    blocks_[block].hash = hash;
    cached_[hash].insert(block);
  }
  void uncache_all() {
    for (std::uint32_t block = 0; block < blocks_.size(); ++block) uncache(block);
  }

 private:
  struct Block {
    std::optional<ToyHash> hash;
    std::uint32_t num_users = 0;
  };

  void uncache(std::uint32_t block) {
    if (!blocks_[block].hash) return;
    const auto found = cached_.find(*blocks_[block].hash);
    found->second.erase(block);
    if (found->second.empty()) cached_.erase(found);
    blocks_[block].hash.reset();
  }

  std::vector<Block> blocks_;
  std::deque<std::uint32_t> free_;
  std::map<ToyHash, std::set<std::uint32_t>> cached_;
};

}  // namespace kvferry::connector
