// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/base/ids.hpp"
#include "kvferry/base/mixed_bits.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace kvferry::cpu_tier {

/// The key of a slot: the engine's content hash of a block, its KV cache group and the weights that
/// computed it. Hashes have 1 to 32 bytes (vLLM: sha256 32, xxhash 16) and are zero-padded; the
/// length is part of the key. The engine hashes tokens, so a block has the same hash under all
/// weights. Therefore the id of the weights is mixed into the key.
struct BlockKey {
  static constexpr std::size_t kMaxHashBytes = 32;
  static constexpr std::uint32_t kMaxGroups = 1U << 16U;

  /// The engine's hash; its first eight bytes are xor-ed with the weights' id.
  std::array<std::byte, kMaxHashBytes> hash{};
  // In this order the three of them are one word for the compiler (tail()).
  std::uint16_t hash_bytes = 0;
  std::uint16_t group = 0;
  /// The weights' id in 32 bits, which identifies a key's weights; 0 if the key has none.
  std::uint32_t weights = 0;

  bool operator==(const BlockKey& other) const {
    // Compares all 40 bytes without a branch or a call for each word.
    std::uint64_t difference = tail() ^ other.tail();
    for (std::size_t i = 0; i < kNumWords; ++i) difference |= word(i) ^ other.word(i);
    return difference == 0;
  }

  /// Throws ConfigError unless 1 <= hash.size() <= 32 and the group is below kMaxGroups.
  static BlockKey make(std::span<const std::byte> hash, GroupId group, WeightsId of = WeightsId()) {
    BlockKey key;
    key.set(hash, group, of);
    return key;
  }
  /// Makes this key the one that make() returns. Use it for many keys, in their final place: a copy
  /// of a key that was just written waits until the small writes have left the processor's store
  /// buffer.
  void set(std::span<const std::byte> of_block, GroupId of_group, WeightsId of_weights) {
    if (of_block.empty() || of_block.size() > kMaxHashBytes) {
      throw ConfigError("a block hash has " + std::to_string(of_block.size()) +
                        " bytes; kvferry takes 1 to 32: choose another prefix_caching_hash_algo");
    }
    if (of_group.value() >= kMaxGroups) {
      throw ConfigError("a block is of KV cache group " + std::to_string(of_group.value()) +
                        "; kvferry takes 65,536 groups");
    }
    if (of_block.size() == kMaxHashBytes) {  // Most hashes are: this copy is two instructions.
      std::memcpy(hash.data(), of_block.data(), kMaxHashBytes);
    } else {
      hash = {};
      std::memcpy(hash.data(), of_block.data(), of_block.size());
    }
    group = static_cast<std::uint16_t>(of_group.value());
    hash_bytes = static_cast<std::uint16_t>(of_block.size());
    weights = 0;
    if (of_weights != WeightsId()) *this = mixed_with(of_weights);
  }

  /// For a key without weights: the key of the same block under these weights. For a key with these
  /// weights: the engine's own key, without weights.
  [[nodiscard]] BlockKey mixed_with(WeightsId of) const {
    BlockKey key = *this;
    const std::uint64_t first = key.word(0) ^ of.value();
    std::memcpy(key.hash.data(), &first, sizeof first);
    key.weights ^= mark_of(of);
    return key;
  }
  /// Whether it has these weights. Only 32 bits are compared: other weights match once in four
  /// billion.
  [[nodiscard]] bool is_of(WeightsId of) const { return weights == mark_of(of); }

  /// 64 well-mixed bits. Content hashes are already uniform, but the group and weak hashes have to
  /// be mixed in.
  [[nodiscard]] std::uint64_t mixed() const { return mixed_bits(folded_hash() ^ tail()); }
  /// The hash as one word. A key whose hash is this word, followed by zeros, has the same mixed()
  /// under all groups and weights; so this word stands for the hash in a recording.
  [[nodiscard]] std::uint64_t folded_hash() const {
    return word(0) ^ (word(1) * 0x9e3779b97f4a7c15ULL) ^ word(2) ^
           (word(3) * 0xbf58476d1ce4e5b9ULL);
  }
  /// mixed() of a key from the folded_hash() of the same key without weights.
  [[nodiscard]] static std::uint64_t mixed_of(std::uint64_t folded, std::uint16_t hash_bytes,
                                              GroupId group, WeightsId of) {
    BlockKey key;
    std::memcpy(key.hash.data(), &folded, sizeof folded);
    key.group = static_cast<std::uint16_t>(group.value());
    key.hash_bytes = hash_bytes;
    return key.mixed_with(of).mixed();
  }

 private:
  static constexpr std::size_t kNumWords = kMaxHashBytes / sizeof(std::uint64_t);

  // Each word is loaded separately: a copy of the whole array would go through the stack.
  [[nodiscard]] std::uint64_t word(std::size_t index) const {
    std::uint64_t value = 0;
    std::memcpy(&value, hash.data() + index * sizeof value, sizeof value);
    return value;
  }
  [[nodiscard]] std::uint64_t tail() const {
    return std::uint64_t{weights} << 32 | std::uint64_t{group} << 16 | hash_bytes;
  }
  [[nodiscard]] static constexpr std::uint32_t mark_of(WeightsId of) {
    return static_cast<std::uint32_t>(of.value() ^ of.value() >> 32);
  }
};
static_assert(sizeof(BlockKey) == 40);

}  // namespace kvferry::cpu_tier
