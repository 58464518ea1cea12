// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/object_key.hpp"

#include "kvferry/base/mixed_bits.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace kvferry::lmcache {
namespace {

// Odd numbers with bits set everywhere: from the golden ratio, and a factor of mixed_bits().
constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15U;
constexpr std::uint64_t kFactor = 0x94d049bb133111ebU;

/// Two lanes over the words of a text. `chained` mixes its state together with each word. `added`
/// rotates its state and combines it with each word, which is mixed alone.
struct Lanes {
  std::uint64_t chained = kGolden;
  std::uint64_t added = kFactor;

  void add(std::uint64_t word) {
    chained = mixed_bits(chained ^ word) + kGolden;
    added = (std::rotl(added, 23) ^ mixed_bits(word + kFactor)) * kGolden;
  }
};

Lanes lanes_of(std::string_view text) {
  Lanes lanes;
  // With the length in front, different texts always have different words.
  lanes.add(text.size());
  for (; text.size() >= sizeof(std::uint64_t); text.remove_prefix(sizeof(std::uint64_t))) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), sizeof word);
    lanes.add(word);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, text.data(), text.size());
  lanes.add(rest);
  return lanes;
}

}  // namespace

cpu_tier::BlockKey digest_of(std::string_view key) {
  const Lanes lanes = lanes_of(key);
  const std::array<std::uint64_t, 2> words = {mixed_bits(lanes.chained), mixed_bits(lanes.added)};
  return cpu_tier::BlockKey::make(std::as_bytes(std::span(words)), GroupId(0));
}

}  // namespace kvferry::lmcache
