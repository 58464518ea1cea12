// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena_slots.hpp"

#include "kvferry/base/error.hpp"

#include <string>

namespace kvferry::cpu_tier {

ArenaSlots::ArenaSlots(const Arena& arena, std::uint32_t slots_per_chunk, std::uint64_t slot_bytes)
    : arena_(&arena), slots_per_chunk_(slots_per_chunk), slot_bytes_(slot_bytes) {
  if (slots_per_chunk == 0 || slot_bytes == 0 ||
      slot_bytes > arena.chunk_bytes() / slots_per_chunk) {
    throw ConfigError(std::to_string(slots_per_chunk) + " slots of " + std::to_string(slot_bytes) +
                      " bytes in a chunk of " + std::to_string(arena.chunk_bytes()) +
                      "; expected at least one slot, and no more than fit");
  }
  if (has_tags() && slots_per_chunk > arena.tags_per_chunk()) {
    throw ConfigError(std::to_string(slots_per_chunk) + " slots in a chunk with " +
                      std::to_string(arena.tags_per_chunk()) +
                      " tags; ask for an arena with as many tags as the class with the most slots");
  }
}

}  // namespace kvferry::cpu_tier
