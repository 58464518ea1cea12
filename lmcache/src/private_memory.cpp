// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/arena.hpp"
#include "kvferry/cpu_tier/arena_growth.hpp"
#include "kvferry/cpu_tier/machine_topology.hpp"
#include "kvferry/gpu/host_link.hpp"
#include "kvferry/lmcache/chunk_memory.hpp"

#include "memory_text.hpp"

#include <vector>

namespace kvferry::lmcache {
namespace {

/// Populated by the constructor, about a second of it: a store that serves before its memory is
/// there evicts what it could have kept.
constexpr std::uint64_t kBytesBeforeServing = std::uint64_t{2} << 30U;

/// The arena's slots are the chunks. LMCache's own memory is what devices touch, so that this is
/// registered with none.
class PrivateMemory final : public ChunkMemory {
 public:
  PrivateMemory(const MemoryOptions& options, const StoreGeometry& geometry)
      : ChunkMemory(geometry),
        slot_bytes_(geometry.num_chunks),
        device_(gpu::make_host_device()),
        arena_(*device_, geometry.chunk_bytes, geometry.num_chunks, arena_options(options)) {
    arena_.grow(kBytesBeforeServing);
    set_places(reinterpret_cast<std::byte*>(  // NOLINT(performance-no-int-to-ptr)
                   arena_.slot_address(SlotId(0))),
               slot_bytes_);
    growth_ = std::make_unique<cpu_tier::ArenaGrowth>(arena_);
  }

  [[nodiscard]] std::uint32_t num_ready() const override { return arena_.num_ready(); }
  [[nodiscard]] std::string warning() const override {
    std::string text = growth_->failure();
    for (const std::string& warning : arena_.warnings()) append_sentence(text, warning);
    return text;
  }
  [[nodiscard]] std::string description() const override {
    const cpu_tier::ArenaReport report = arena_.report();
    return memory_text(report.pages, report.huge_page_share, arena_.placement_reason(), {});
  }

 private:
  static cpu_tier::ArenaOptions arena_options(const MemoryOptions& options) {
    cpu_tier::ArenaOptions arena;
    arena.start = cpu_tier::ArenaStart::kEmpty;
    arena.pages = options.pages;
    arena.placement = cpu_tier::choose_memory_placement(
        std::make_shared<const cpu_tier::MachineTopology>(), options.numa_node, std::nullopt);
    return arena;
  }

  std::vector<std::atomic<std::uint64_t>> slot_bytes_;
  std::unique_ptr<gpu::Device> device_;
  cpu_tier::Arena arena_;
  /// Last: it ends before what it grows.
  std::unique_ptr<cpu_tier::ArenaGrowth> growth_;
};

}  // namespace

std::unique_ptr<ChunkMemory> make_private_memory(const MemoryOptions& options) {
  return std::make_unique<PrivateMemory>(options, store_geometry(options.capacity_bytes));
}

}  // namespace kvferry::lmcache
