// SPDX-License-Identifier: Apache-2.0
// The host memory of WorkerEngine.
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/peers/arena_in_tier.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"

#include "worker_impl.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvferry::connector {
namespace {

cpu_tier::MemoryPlacement placement_of(const gpu::Device& device,
                                       std::optional<std::uint32_t> numa_node) {
  try {
    return cpu_tier::choose_memory_placement(std::make_shared<cpu_tier::MachineTopology>(),
                                             numa_node, device.pci_address());
  } catch (const ResourceError& error) {
    if (numa_node) throw;
    return {.topology = nullptr, .node = std::nullopt, .reason = error.what()};
  }
}

/// Returns null if the arena is not in a shared tier.
std::shared_ptr<const cpu_tier::JoinedRank> join_tier(std::uint64_t chunk_bytes,
                                                      const WorkerOptions& options) {
  if (!options.shared) return nullptr;
  const SharedTierWish& wish = *options.shared;
  auto rank =
      std::make_shared<const cpu_tier::JoinedRank>(wish.tier, wish.instance, options.rank.value());
  const cpu_tier::TierShape& shape = rank->tier().shape();
  if (chunk_bytes > shape.chunk_bytes) {
    throw ConfigError("rank " + std::to_string(options.rank.value()) + " needs chunks of " +
                      std::to_string(chunk_bytes) + " bytes for its blocks and the shared tier " +
                      wish.tier.path.string() + " has chunks of " +
                      std::to_string(shape.chunk_bytes) +
                      "; make cpu_bytes_to_use larger for all engines that share it");
  }
  return rank;
}

std::unique_ptr<cpu_tier::ArenaSource> source_of(
    const WorkerOptions& options, std::shared_ptr<const cpu_tier::JoinedRank> joined) {
  if (!joined) return cpu_tier::make_group_source(options.replicas);
  if (options.replicas.has_others()) {
    throw ConfigError("the shared tier " + joined->tier().path().string() +
                      " cannot hold one memory for ranks with the same KV cache; set "
                      "share_replicated_kv: false, or leave shared_path out");
  }
  return cpu_tier::make_tier_source(std::move(joined));
}

}  // namespace

std::unique_ptr<cpu_tier::Arena> make_arena(gpu::Device& device, std::uint64_t chunk_bytes,
                                            const WorkerOptions& options) {
  auto joined = join_tier(chunk_bytes, options);
  // Blocks may be smaller than a tier's chunk.
  if (joined) chunk_bytes = joined->tier().shape().chunk_bytes;
  cpu_tier::ArenaOptions how = options.arena;
  how.start = cpu_tier::ArenaStart::kEmpty;
  // Other engines own parts of a shared tier's file, so it is not resized here.
  if (!joined) how.resizing = cpu_tier::ArenaResizing::kByPieces;
  how.tags_per_chunk =
      *std::max_element(options.slots_per_chunk.begin(), options.slots_per_chunk.end());
  how.placement = placement_of(device, options.numa_node);
  auto arena = std::make_unique<cpu_tier::Arena>(device, source_of(options, std::move(joined)),
                                                 chunk_bytes, options.num_chunks, how);
  arena->grow(1);
  return arena;
}

void WorkerEngine::Impl::check_growth() {
  if (!growth_) {
    // The engine steps, so all of its ranks have started.
    arena_->withdraw_claim();
    return;
  }
  const std::uint32_t num_chunks = arena_->num_ready();
  // The report of the first chunks is complete before any of them is given back.
  if (num_chunks > reported_chunks_) report_.num_ready_chunks = reported_chunks_ = num_chunks;
  const std::string failure = growth_->failure();
  if (!failure.empty() && options_.arena.shortage == cpu_tier::Shortage::kRefuse) {
    throw ResourceError(rank_text() + " has " + std::to_string(num_ready()) + " of " +
                        std::to_string(max_slots()) +
                        " slots of its share of the CPU tier and cannot have more: " + failure +
                        "; make cpu_bytes_to_use smaller, or set allow_smaller_tier");
  }
  if (!growth_->ended() || !chunk_orders_.empty()) return;
  if (const auto report = growth_->last_report()) arena_report_ = *report;
  if (num_chunks == arena_->num_first()) growth_.reset();
}

std::string WorkerEngine::Impl::arena_text() const {
  const cpu_tier::ArenaReport report = arena_->report();
  char percent[16];
  const auto text_of = [&percent](double share) {
    std::snprintf(percent, sizeof percent, "%.0f %%", 100 * share);
    return std::string(percent);
  };
  std::string text = std::to_string(num_ready()) + " of " + std::to_string(max_slots()) +
                     " slots are ready, in " + to_string(report.pages) + " pages (" +
                     text_of(report.huge_page_share) + " in huge ones" +
                     (report.gave_up_huge_pages ? ", which came too slowly for more)" : ")");
  text += report.node
              ? ", NUMA node " + std::to_string(*report.node) +
                    (report.share_on_node ? " (" + text_of(*report.share_on_node) + " is there)"
                                          : " (the kernel does not say how much is there)")
              : ", no NUMA node preferred";
  text += ": " + arena_->placement_reason();
  if (const cpu_tier::ReplicaGroup& replicas = options_.replicas; replicas.has_others()) {
    text += "; shared with " + std::to_string(replicas.size - 1) +
            (replicas.size == 2 ? " other rank of " : " other ranks of ") +
            "this node, which hold the same KV cache";
  }
  if (options_.shared) text += "; in " + options_.shared->tier.path.string();
  if (growth_ && !growth_->failure().empty()) text += "; no more: " + growth_->failure();
  return text;
}

}  // namespace kvferry::connector
