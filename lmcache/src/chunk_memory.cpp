// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/chunk_memory.hpp"

#include "kvferry/base/rounded_up.hpp"
#include "kvferry/base/stable_hash.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/memory/arena_growth.hpp"
#include "kvferry/cpu_tier/memory/machine_topology.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <unistd.h>

namespace kvferry::lmcache {
namespace {

using cpu_tier::JoinedTier;
using cpu_tier::TierDirectory;

/// Populated by the constructor, about a second of it: a store that serves before its memory is
/// there evicts what it could have kept.
constexpr std::uint64_t kBytesBeforeServing = std::uint64_t{2} << 30U;

/// Of store_geometry.hpp, slot_record.hpp and object_key.hpp: whoever divides, finds or reads
/// otherwise has another.
constexpr std::uint64_t kNameSpace = stable_hash("kvferry.lmcache object store, layout 3");

void append_sentence(std::string& text, const std::string& sentence) {
  if (!text.empty()) text += "; ";
  text += sentence;
}

/// The arena's slots are the chunks. LMCache's own memory is what devices touch, so that this is
/// registered with none.
class ArenaMemory final : public ChunkMemory {
 public:
  ArenaMemory(StoreGeometry geometry, const cpu_tier::ArenaOptions& options,
              std::unique_ptr<JoinedTier> tier)
      : ChunkMemory(std::move(geometry)),
        tier_(std::move(tier)),
        device_(gpu::make_host_device()),
        arena_(*device_, this->geometry().chunk_bytes, this->geometry().num_chunks, options) {
    arena_.grow(kBytesBeforeServing);
    set_begin(reinterpret_cast<std::byte*>(  // NOLINT(performance-no-int-to-ptr)
        arena_.slot_address(SlotId(0))));
    growth_ = std::make_unique<cpu_tier::ArenaGrowth>(arena_);
  }

  [[nodiscard]] TierDirectory* directory() const override {
    return tier_ ? &tier_->directory() : nullptr;
  }
  [[nodiscard]] std::uint32_t num_ready() const override { return arena_.num_ready(); }
  [[nodiscard]] std::string warning() const override {
    std::string text = growth_->failure();
    for (const std::string& warning : arena_.warnings()) append_sentence(text, warning);
    return text;
  }
  [[nodiscard]] std::string description() const override {
    const cpu_tier::ArenaReport report = arena_.report();
    std::string text = std::string(to_string(report.pages)) + " pages, " +
                       std::to_string(std::lround(100 * report.huge_page_share)) +
                       " % of them huge";
    append_sentence(text, "NUMA node: " + arena_.placement_reason());
    if (tier_) append_sentence(text, "shared in " + tier_->tier().path().string());
    return text;
  }

 private:
  /// Left last.
  const std::unique_ptr<JoinedTier> tier_;
  const std::unique_ptr<gpu::Device> device_;
  cpu_tier::Arena arena_;
  /// Last: it ends before what it grows.
  std::unique_ptr<cpu_tier::ArenaGrowth> growth_;
};

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

}  // namespace

std::unique_ptr<ChunkMemory> make_memory(const MemoryOptions& options) {
  cpu_tier::ArenaOptions arena;
  arena.start = cpu_tier::ArenaStart::kEmpty;
  arena.pages = options.pages;
  arena.placement = cpu_tier::choose_memory_placement(
      std::make_shared<const cpu_tier::MachineTopology>(), options.numa_node, std::nullopt);
  if (!options.shared) {
    return std::make_unique<ArenaMemory>(store_geometry(options.capacity_bytes), arena, nullptr);
  }
  const cpu_tier::SharedTierOptions of = tier_options(options);
  // Held, so that what is joined is divided as this is.
  const auto file = cpu_tier::SharedTier::make_or_open(of);
  const cpu_tier::TierShape& shape = file->shape();
  const TierDirectory::Identity identity = identity_of(*options.shared, shape.chunk_bytes);
  auto tier = JoinedTier::join(of, identity);
  arena.shared = std::make_shared<const cpu_tier::JoinedRank>(of, identity.name, 0);
  return std::make_unique<ArenaMemory>(
      divided(shape.chunk_bytes, shape.num_chunks, shape.max_chunk_slots), arena, std::move(tier));
}

}  // namespace kvferry::lmcache
