// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstdint>
#include <cstdio>
#include <string>

namespace kvferry::transfer {

/// In the tag table: nothing is known of the slot's bytes.
inline constexpr std::uint64_t kNoTag = 0;

/// What a slot's bytes are recognised by: their sum (gpu/tag_sum.hpp) and the identity of the block
/// (base/ids.hpp), which is as good as random. Never kNoTag.
[[nodiscard]] constexpr std::uint64_t block_tag(std::uint64_t sum, std::uint64_t identity) {
  const std::uint64_t tag = sum ^ identity;
  return tag == kNoTag ? 1 : tag;
}

/// Why a load failed whose block arrived with another tag than it was stored with.
[[nodiscard]] inline std::string mismatch_text(const BlockSlot& block, std::uint64_t expected,
                                               std::uint64_t found) {
  char tags[64];
  std::snprintf(tags, sizeof(tags), "tag %016llx; expected is %016llx",
                static_cast<unsigned long long>(found), static_cast<unsigned long long>(expected));
  return "damaged block: slot " + std::to_string(block.slot.value()) + " arrived with " + tags;
}

}  // namespace kvferry::transfer
