// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstdint>
#include <cstdio>
#include <string>

namespace kvferry::transfer {

/// In the tag table: the bytes of the slot are unknown.
inline constexpr std::uint64_t kNoTag = 0;

/// The tag of a slot's bytes: their sum (gpu/tag_sum.hpp) combined with the block's identity
/// (base/ids.hpp), which is as good as random. It is never kNoTag.
[[nodiscard]] constexpr std::uint64_t block_tag(std::uint64_t sum, std::uint64_t identity) {
  const std::uint64_t tag = sum ^ identity;
  return tag == kNoTag ? 1 : tag;
}

/// Why a load failed: the tag of a block that arrived differs from the tag of its store.
[[nodiscard]] inline std::string mismatch_text(const BlockSlot& block, std::uint64_t expected,
                                               std::uint64_t found) {
  char tags[64];
  std::snprintf(tags, sizeof(tags), "tag %016llx; expected %016llx",
                static_cast<unsigned long long>(found), static_cast<unsigned long long>(expected));
  return "damaged block: slot " + std::to_string(block.slot.value()) + " arrived with " + tags;
}

}  // namespace kvferry::transfer
