// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/chunk_memory.hpp"

#include "kvferry/base/rounded_up.hpp"
#include "kvferry/base/stable_hash.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/memory/arena_growth.hpp"
#include "kvferry/cpu_tier/memory/machine_topology.hpp"
#include "kvferry/cpu_tier/peers/arena_in_tier.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <unistd.h>
#include <utility>

namespace kvferry::lmcache {
namespace {

using cpu_tier::JoinedTier;
using cpu_tier::TierDirectory;

/// The constructor populates this much, in about a second. A store that serves before its memory is
/// ready evicts values that it could have kept.
constexpr std::uint64_t kBytesBeforeServing = std::uint64_t{2} << 30U;

/// Stands for the division (store_geometry.hpp), the records (slot_record.hpp) and the digests
/// (object_key.hpp). Versions that differ in one of them have different name spaces.
constexpr std::uint64_t kNameSpace = stable_hash("kvferry.lmcache object store, layout 4");

void append_sentence(std::string& text, const std::string& sentence) {
  if (!text.empty()) text += "; ";
  text += sentence;
}

cpu_tier::SharedTierOptions tier_options(const MemoryOptions& options) {
  const SharedMemoryOptions& shared = *options.shared;
  cpu_tier::SharedTierOptions tier{.path = shared.path,
                                   .capacity_bytes = options.capacity_bytes,
                                   .chunk_bytes = shared.chunk_bytes,
                                   .at_exit = shared.at_exit};
  if (shared.chunk_bytes == 0) {
    tier.chunk_bytes = rounded_up(chunk_bytes_for(options.capacity_bytes),
                                  cpu_tier::SharedFile::page_bytes_at(shared.path));
    tier.division = cpu_tier::Division::kAsFound;
  }
  return tier;
}

TierDirectory::Identity identity_of(const SharedMemoryOptions& shared, std::uint64_t chunk_bytes) {
  std::random_device random;
  const std::uint64_t most = std::max<std::uint64_t>(shared.bytes_limit / chunk_bytes, 1);
  return {.name = "lmcache/" + std::to_string(::getpid()) + "-" + std::to_string(random()),
          .name_space = kNameSpace,
          .weight = shared.weight,
          .most_chunks = shared.bytes_limit == 0 ? 0 : static_cast<std::uint32_t>(most),
          .grace = shared.grace};
}

std::unique_ptr<ChunkMemory> shared_memory(const MemoryOptions& options,
                                           const cpu_tier::ArenaOptions& arena) {
  const cpu_tier::SharedTierOptions of = tier_options(options);
  // The file stays open, so that the tier that is joined has the division of this file.
  const auto file = cpu_tier::SharedTier::make_or_open(of);
  const cpu_tier::TierShape& shape = file->shape();
  const TierDirectory::Identity identity = identity_of(*options.shared, shape.chunk_bytes);
  auto tier = JoinedTier::join(of, identity);
  auto rank = std::make_shared<const cpu_tier::JoinedRank>(of, identity.name, 0);
  return std::make_unique<ChunkMemory>(
      divided(shape.chunk_bytes, shape.num_chunks, shape.max_chunk_slots),
      cpu_tier::make_tier_source(std::move(rank)), arena, std::move(tier));
}

cpu_tier::ArenaOptions empty(cpu_tier::ArenaOptions options) {
  options.start = cpu_tier::ArenaStart::kEmpty;
  return options;
}

}  // namespace

ChunkMemory::ChunkMemory(StoreGeometry geometry, std::unique_ptr<cpu_tier::ArenaSource> source,
                         cpu_tier::ArenaOptions options, std::unique_ptr<JoinedTier> tier)
    : geometry_(std::move(geometry)),
      tier_(std::move(tier)),
      directory_(tier_ ? &tier_->directory() : nullptr),
      device_(gpu::make_host_device()),
      arena_(std::make_unique<cpu_tier::Arena>(*device_, std::move(source), geometry_.chunk_bytes,
                                               geometry_.num_chunks, empty(std::move(options)))),
      begin_(reinterpret_cast<std::byte*>(  // NOLINT(performance-no-int-to-ptr)
          arena_->chunk_address(ChunkId(0)))) {}

ChunkMemory::~ChunkMemory() = default;

void ChunkMemory::grow(std::uint64_t most_bytes) { arena_->grow(most_bytes); }

void ChunkMemory::grow_in_background() {
  growth_ = std::make_unique<cpu_tier::ArenaGrowth>(*arena_);
}

std::uint32_t ChunkMemory::num_ready() const { return arena_->num_ready(); }

std::string ChunkMemory::warning() const {
  std::string text = growth_ ? growth_->failure() : std::string();
  for (const std::string& warning : arena_->warnings()) append_sentence(text, warning);
  return text;
}

std::string ChunkMemory::description() const {
  const cpu_tier::ArenaReport report = arena_->report();
  std::string text = std::string(to_string(report.pages)) + " pages, " +
                     std::to_string(std::lround(100 * report.huge_page_share)) + " % of them huge";
  append_sentence(text, "NUMA node: " + arena_->placement_reason());
  if (tier_) append_sentence(text, "shared in " + tier_->tier().path().string());
  return text;
}

std::unique_ptr<ChunkMemory> make_memory(const MemoryOptions& options) {
  cpu_tier::ArenaOptions arena;
  arena.pages = options.pages;
  arena.placement = cpu_tier::choose_memory_placement(
      std::make_shared<const cpu_tier::MachineTopology>(), options.numa_node, std::nullopt);
  std::unique_ptr<ChunkMemory> memory =
      options.shared ? shared_memory(options, arena)
                     : std::make_unique<ChunkMemory>(store_geometry(options.capacity_bytes),
                                                     cpu_tier::make_own_source(), arena);
  memory->grow(kBytesBeforeServing);
  memory->grow_in_background();
  return memory;
}

}  // namespace kvferry::lmcache
