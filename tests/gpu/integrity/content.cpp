// SPDX-License-Identifier: Apache-2.0
#include "content.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace kvferry::integrity {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

std::uint64_t word(std::uint64_t start, std::uint64_t index) {
  std::uint64_t x = start + index * 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 32U)) * 0xd6e8feb86659fd93U;
  return x ^ (x >> 29U);
}

}  // namespace

void Content::write(std::span<std::uint8_t> packed) const {
  if (kind != Kind::kPattern) {
    std::fill(packed.begin(), packed.end(), static_cast<std::uint8_t>(key));
    return;
  }
  const std::uint64_t start = word(key, version + 1) + version;
  const std::size_t num_words = packed.size() / kWord;
  for (std::size_t i = 0; i < num_words; ++i) {
    const std::uint64_t value = word(start, i);
    std::memcpy(packed.data() + i * kWord, &value, kWord);
  }
  const std::uint64_t last = word(start, num_words);
  std::memcpy(packed.data() + num_words * kWord, &last, packed.size() % kWord);
}

std::size_t Content::first_difference(std::span<const std::uint8_t> packed) const {
  thread_local std::vector<std::uint8_t> expected;
  expected.resize(packed.size());
  write(expected);
  if (std::memcmp(expected.data(), packed.data(), packed.size()) == 0) return packed.size();
  const auto differs = std::mismatch(packed.begin(), packed.end(), expected.begin());
  return static_cast<std::size_t>(differs.first - packed.begin());
}

std::string Content::text() const {
  switch (kind) {
    case Kind::kUnknown:
      return "anything";
    case Kind::kValue:
      return "the value " + std::to_string(key) + " in every byte";
    case Kind::kPattern:
      return "key " + std::to_string(key) + " version " + std::to_string(version);
  }
  return "";
}

}  // namespace kvferry::integrity
