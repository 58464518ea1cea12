// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/scheduler/scheduler_options.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>

namespace kvferry::connector {
namespace {

/// Tokens of a request are counted in 32 bits.
constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();

/// Throws ConfigError if a block, or what the blocks of all groups have in common, is too long.
void validate_lengths(const SchedulerOptions& options) {
  std::uint64_t common = 1;
  for (const KvGroup& group : options.groups) {
    common = std::lcm(common, std::uint64_t{group.hashes_per_block});
    if (common <= kMost && common * options.hash_tokens <= kMost) continue;
    throw ConfigError("the blocks of the KV cache groups end together only after more than " +
                      std::to_string(kMost) + " tokens");
  }
}

void validate_classes(const SchedulerOptions& options) {
  if (options.classes.empty()) throw ConfigError("classes is empty; expected one size of slots");
  for (std::size_t i = 0; i < options.classes.size(); ++i) {
    const SlabClass& of = options.classes[i];
    if (of.slot_bytes.size() != options.world_size) {
      throw ConfigError("slot_bytes has " + std::to_string(of.slot_bytes.size()) +
                        " entries; expected one per rank, " + std::to_string(options.world_size));
    }
    if (of.slot_bytes.front() == 0) {
      throw ConfigError("slot_bytes of slab class " + std::to_string(i) +
                        " is 0 for rank 0; expected the bytes of its blocks");
    }
    if (of.slots_per_chunk == 0) {
      throw ConfigError("slots_per_chunk of slab class " + std::to_string(i) +
                        " is 0; expected at least one slot");
    }
    if (i > 0 && of.slot_bytes.front() > options.classes[i - 1].slot_bytes.front()) {
      throw ConfigError("the slots of class " + std::to_string(i) +
                        " are larger than those of the class before; expected the largest first");
    }
  }
  const auto is_left_out = [](const KvGroup& group) { return group.reach.is_none(); };
  if (std::all_of(options.groups.begin(), options.groups.end(), is_left_out)) {
    throw ConfigError("every KV cache group has the reach 'none'; expected one that is kept");
  }
  for (const KvGroup& group : options.groups) {
    if (group.hashes_per_block == 0) {
      throw ConfigError("a KV cache group has 0 hashes for each block; expected at least one");
    }
  }
  validate_lengths(options);
  for (const KvGroup& group : options.groups) {
    group.reach.check_block(options.hash_tokens * group.hashes_per_block);
    if (group.slab_class.value() < options.classes.size()) continue;
    throw ConfigError("a KV cache group is of slab class " +
                      std::to_string(group.slab_class.value()) + "; there are " +
                      std::to_string(options.classes.size()));
  }
}

}  // namespace

void validate(const SchedulerOptions& options) {
  if (options.world_size == 0) throw ConfigError("world_size is 0; expected at least one rank");
  if (options.hash_tokens == 0) {
    throw ConfigError("hash_tokens is 0; expected the tokens that one hash of the engine covers");
  }
  if (options.num_blocks == 0)
    throw ConfigError("num_blocks is 0; expected the engine's pool size");
  if (options.max_chunks == 0) {
    throw ConfigError("the CPU tier has room for 0 blocks; raise cpu_bytes_to_use");
  }
  if (!options.replicas.empty() && options.replicas.size() != options.world_size) {
    throw ConfigError("replicas has " + std::to_string(options.replicas.size()) +
                      " entries; expected one per rank, " + std::to_string(options.world_size));
  }
  if (options.groups.empty()) throw ConfigError("groups is empty; expected one KV cache group");
  validate_classes(options);
}

}  // namespace kvferry::connector
