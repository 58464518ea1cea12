// SPDX-License-Identifier: Apache-2.0
// WorkerEngine: its host memory.
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"

#include "worker_impl.hpp"

#include <cstdio>

namespace kvferry::connector {
namespace {

cpu_tier::MemoryPlacement placement_of(const gpu::Device& device, const ArenaWishes& wishes) {
  try {
    return cpu_tier::choose_memory_placement(std::make_shared<cpu_tier::MachineTopology>(),
                                             wishes.numa_node, device.pci_address());
  } catch (const ResourceError& error) {
    if (wishes.numa_node) throw;
    return {.topology = nullptr, .node = std::nullopt, .reason = error.what()};
  }
}

/// Nothing if the arena is not to be in a shared tier.
std::shared_ptr<const cpu_tier::JoinedRank> join_tier(std::uint64_t chunk_bytes,
                                                      const WorkerOptions& options) {
  if (!options.arena.shared) return nullptr;
  const SharedTierWish& wish = *options.arena.shared;
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

}  // namespace

std::unique_ptr<cpu_tier::Arena> make_arena(gpu::Device& device, std::uint64_t chunk_bytes,
                                            const WorkerOptions& options) {
  const ArenaWishes& wishes = options.arena;
  const auto shared = join_tier(chunk_bytes, options);
  auto arena = std::make_unique<cpu_tier::Arena>(
      device, shared ? shared->tier().shape().chunk_bytes : chunk_bytes, options.num_chunks,
      cpu_tier::ArenaOptions{.pinned_piece_bytes = wishes.pinned_piece_bytes,
                             .start = cpu_tier::ArenaStart::kEmpty,
                             .pages = wishes.pages,
                             .placement = placement_of(device, wishes),
                             .group = wishes.group,
                             .shortage = wishes.allow_smaller_tier ? cpu_tier::Shortage::kTakeLess
                                                                   : cpu_tier::Shortage::kRefuse,
                             .replicas = wishes.replicas,
                             .shared = shared,
                             .machine = wishes.machine});
  arena->grow(1);
  return arena;
}

void WorkerEngine::Impl::check_growth() {
  if (!growth_) {
    // The engine steps, so that all of its ranks have started.
    arena_->withdraw_claim();
    return;
  }
  const std::uint32_t num_chunks = arena_->num_ready();
  if (num_chunks > reported_chunks_) report_.num_ready_chunks = reported_chunks_ = num_chunks;
  const std::string failure = growth_->failure();
  if (!failure.empty() && !options_.arena.allow_smaller_tier) {
    throw ResourceError(rank_text() + " has " + std::to_string(num_ready()) + " of " +
                        std::to_string(max_slots()) +
                        " slots of its share of the CPU tier and cannot have more: " + failure +
                        "; make cpu_bytes_to_use smaller, or set allow_smaller_tier");
  }
  if (!growth_->ended()) return;
  if (const auto report = growth_->last_report()) arena_report_ = *report;
  if (num_chunks == arena_->num_slots()) growth_.reset();
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
                                          : " (the kernel does not tell what is there)")
              : ", no NUMA node preferred";
  text += ": " + arena_->placement_reason();
  if (arena_->num_sharing() > 1) {
    text += "; shared with " + std::to_string(arena_->num_sharing() - 1) +
            (arena_->num_sharing() == 2 ? " other rank of " : " other ranks of ") +
            "this node, for all hold the same KV cache";
  }
  if (options_.arena.shared) text += "; in " + options_.arena.shared->tier.path.string();
  if (growth_ && !growth_->failure().empty()) text += "; no more: " + growth_->failure();
  return text;
}

}  // namespace kvferry::connector
