// SPDX-License-Identifier: Apache-2.0
// An ArenaSource with memory of this process only.
#include "kvferry/cpu_tier/memory/arena_source.hpp"

#include "claimed_grant.hpp"

namespace kvferry::cpu_tier {
namespace {

class OwnSource final : public ArenaSource {
 public:
  [[nodiscard]] ArenaGrant grant(const ArenaShape& asked, const ArenaOptions& options) override {
    pages_ = pages_for(asked, options);
    placement_ = options.placement;
    const ClaimTurn turn(options.machine);
    ArenaGrant grant = claimed_grant(turn, asked, pages_, options);
    const ArenaShape granted{asked.chunk_bytes, grant.num_chunks};
    grant.chunks_per_piece = chunks_per_piece(granted, options.pinned_piece_bytes);
    bytes_ = granted.bytes();
    return grant;
  }

  [[nodiscard]] std::unique_ptr<HostMapping> map() override {
    auto mapping = std::make_unique<HostMapping>(bytes_, pages_);
    // Even if this is refused, first touch by bound threads brings most of the memory to the node.
    if (placement_.node) {
      static_cast<void>(placement_.topology->prefer(mapping->bytes(), *placement_.node));
    }
    return mapping;
  }

  // The pages of the machine's pool would go back to the pool, and not to other programs.
  [[nodiscard]] bool can_give_back() const override { return pages_ != PageKind::kPool; }

  void give_back(ArenaPages& pages, ChunkRange chunks) noexcept override {
    pages.mapping().release(pages.bytes_of(chunks));
  }

  [[nodiscard]] bool make_resident_again(ArenaPages& pages, ChunkRange chunks,
                                         const std::stop_token& stop) override {
    const std::span<std::byte> part = pages.bytes_of(chunks);
    const auto claim = pages.claim(pages.needed_bytes(chunks));
    return pages.populate(part, stop);
  }

  [[nodiscard]] std::optional<std::chrono::nanoseconds> make_resident(
      ArenaPages& pages, ChunkRange chunks, const std::stop_token& stop) override {
    const std::span<std::byte> part = pages.bytes_of(chunks);
    pages.check_budget(pages.needed_bytes(chunks));
    if (!pages.populate(part, stop)) return std::nullopt;
    return std::chrono::nanoseconds(0);
  }

 private:
  std::uint64_t bytes_ = 0;
  PageKind pages_ = PageKind::kNormal;
  MemoryPlacement placement_;
};

}  // namespace

std::unique_ptr<ArenaSource> make_own_source() { return std::make_unique<OwnSource>(); }

}  // namespace kvferry::cpu_tier
