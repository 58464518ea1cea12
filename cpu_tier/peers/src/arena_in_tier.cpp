// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/arena_in_tier.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/claim_turn.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/cpu_tier/peers/tier_header.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

void check_fit(const SharedTier& tier, const ArenaShape& asked, const ArenaOptions& options) {
  if (options.pages && *options.pages != tier.file().pages()) {
    throw ConfigError(std::string("pages of kind ") + to_string(*options.pages) +
                      " were requested, but the shared tier " + tier.path().string() + " has " +
                      to_string(tier.file().pages()) +
                      " ones, which its file system sets; name a shared_path on a "
                      "hugetlbfs, or leave pages out");
  }
  if (asked.chunk_bytes != tier.shape().chunk_bytes ||
      asked.num_chunks != tier.shape().num_chunks) {
    throw ConfigError("an arena of " + std::to_string(asked.num_chunks) + " chunks of " +
                      std::to_string(asked.chunk_bytes) +
                      " bytes was requested, but the shared tier " + tier.path().string() +
                      " has " + to_string(tier.shape()) + "; request chunks of that shape");
  }
  if (asked.tags_per_chunk > tier.shape().max_chunk_slots) {
    throw ConfigError(std::to_string(asked.tags_per_chunk) +
                      " tags for each chunk were requested, but the shared tier " +
                      tier.path().string() + " has " + to_string(tier.shape()) +
                      "; request at most as many slots");
  }
}

/// All limits on the memory that the file can still take.
std::vector<MemoryLimit> limits_of(const SharedTier& tier, const MemoryClaim& claim,
                                   std::uint64_t missing_bytes) {
  std::vector<MemoryLimit> limits = claim.limits();
  const std::uint32_t num_ranks = tier.shape().num_ranks;
  if (auto mount = tier.file().limit_of_mount(missing_bytes * num_ranks)) {
    // The file has the parts of all ranks.
    mount->room_bytes = mount->room_bytes / num_ranks * claim.num_ranks_to_come();
    limits.push_back(*std::move(mount));
  }
  return limits;
}

class TierSource final : public ArenaSource {
 public:
  explicit TierSource(std::shared_ptr<const JoinedRank> rank) : rank_(std::move(rank)) {}

  [[nodiscard]] ArenaGrant grant(const ArenaShape& asked, const ArenaOptions& options) override;
  [[nodiscard]] std::unique_ptr<HostMapping> map() override {
    return std::make_unique<HostMapping>(rank_->tier().file(), rank_->arena_offset(),
                                         granted_.bytes());
  }
  // The tags are metadata, for which the file has had memory since it was made.
  [[nodiscard]] std::unique_ptr<HostMapping> map_tags(const ArenaShape& /*granted*/) override {
    const SharedTier& tier = rank_->tier();
    return std::make_unique<HostMapping>(tier.file(), tier.tags_offset(rank_->rank()),
                                         tier.places().rank_tag_bytes);
  }
  [[nodiscard]] std::optional<std::chrono::nanoseconds> make_resident(
      ArenaPages& pages, ChunkRange chunks, const std::stop_token& stop) override;
  [[nodiscard]] std::uint64_t bytes_to_claim(std::uint64_t bytes) const override {
    return std::min(bytes, rank_->tier().missing_arena_bytes());
  }
  void leave() noexcept override { rank_.reset(); }

 private:
  /// Sets everything but how many chunks a piece has.
  [[nodiscard]] ArenaGrant ask(const ArenaShape& asked, const ArenaOptions& options) const;

  std::shared_ptr<const JoinedRank> rank_;
  ArenaShape granted_;
};

ArenaGrant TierSource::grant(const ArenaShape& asked, const ArenaOptions& options) {
  check_fit(rank_->tier(), asked, options);
  ArenaGrant grant = ask(asked, options);
  granted_ = {asked.chunk_bytes, grant.num_chunks};
  // One word for each slot, whichever instance has the chunk and however it divides it.
  grant.tags_per_chunk = rank_->tier().shape().max_chunk_slots;
  grant.chunks_per_piece = chunks_per_piece(granted_, options.pinned_piece_bytes);
  return grant;
}

ArenaGrant TierSource::ask(const ArenaShape& asked, const ArenaOptions& options) const {
  const SharedTier& tier = rank_->tier();
  const PageKind pages = tier.file().pages();
  ArenaGrant grant{.num_chunks = asked.num_chunks};
  // One process claims it for all that map this part. If each of them claimed what the file lacks,
  // it would count several times.
  const std::uint64_t missing =
      rank_->claims_arena() ? tier.missing_arena_bytes() : std::uint64_t{0};
  if (missing == 0) return grant;
  const ClaimTurn turn(options.machine);
  auto claim = std::make_unique<MemoryClaim>(missing, pages, options.group, options.machine);
  if (!claim->why_unseen().empty()) grant.warnings.push_back(claim->why_unseen());
  const std::vector<MemoryLimit> limits = limits_of(tier, *claim, missing);
  const std::uint64_t num_ranks = claim->num_ranks_to_come();
  const auto shortage = shortage_text(missing * num_ranks, limits,
                                      "the shared tier " + tier.path().string() + " still lacks");
  if (shortage && options.shortage == Shortage::kRefuse) throw ResourceError(*shortage);
  if (shortage) {
    const std::uint64_t held = asked.bytes() - missing;
    const std::uint64_t room = room_bytes(limits) / num_ranks;
    grant.num_chunks = static_cast<std::uint32_t>((held + room) / asked.chunk_bytes);
    if (grant.num_chunks == 0) throw ResourceError(*shortage);
    claim->set_bytes(std::min(room, missing));
    grant.warnings.push_back("this rank takes " + std::to_string(grant.num_chunks) + " of " +
                             std::to_string(asked.num_chunks) + " chunks: " + *shortage);
  }
  grant.claim = std::move(claim);
  return grant;
}

std::optional<std::chrono::nanoseconds> TierSource::make_resident(ArenaPages& pages,
                                                                  ChunkRange chunks,
                                                                  const std::stop_token& stop) {
  const std::span<std::byte> part = pages.bytes_of(chunks);
  if (const std::uint64_t missing = pages.mapping().missing_bytes(part); missing > 0) {
    pages.check_budget(missing);
    // The file keeps the preference: the process that makes a page resident decides where it is.
    pages.prefer_node(part);
    rank_->tier().file().reserve_part(
        rank_->arena_offset() + chunks.begin.value() * granted_.chunk_bytes, part.size());
  }
  if (!pages.populate(part, stop)) return std::nullopt;
  return std::chrono::nanoseconds(0);
}

}  // namespace

std::unique_ptr<ArenaSource> make_tier_source(std::shared_ptr<const JoinedRank> rank) {
  return std::make_unique<TierSource>(std::move(rank));
}

}  // namespace kvferry::cpu_tier
