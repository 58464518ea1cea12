// SPDX-License-Identifier: Apache-2.0
#include "claimed_grant.hpp"

#include "kvferry/cpu_tier/memory/memory_budget.hpp"
#include "kvferry/cpu_tier/memory/pool_budget.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvferry::cpu_tier {

PageKind pages_for(const ArenaShape& asked, const ArenaOptions& options) {
  const bool comes_and_goes = first_chunks(asked, options) < asked.num_chunks;
  const std::optional<PageKind> wanted =
      comes_and_goes && !options.pages ? std::optional(PageKind::kTransparent) : options.pages;
  return choose_pages(asked.bytes(), wanted, options.machine);
}

ArenaGrant claimed_grant(const ClaimTurn& /*turn*/, const ArenaShape& asked, PageKind pages,
                         const ArenaOptions& options) {
  // Memory that the arena may get later is claimed when it gets it.
  const ArenaShape first{asked.chunk_bytes, first_chunks(asked, options), asked.tags_per_chunk};
  auto claim =
      std::make_unique<MemoryClaim>(first.bytes_of(pages), pages, options.group, options.machine);
  ArenaGrant grant{.num_chunks = asked.num_chunks};
  if (!claim->why_unseen().empty()) grant.warnings.push_back(claim->why_unseen());
  if (const auto shortage = claim->shortage();
      shortage && options.shortage == Shortage::kTakeLess) {
    const std::uint64_t room = room_bytes(claim->limits()) / claim->num_ranks_to_come();
    // If there is no room at all, this check says which limit leaves none.
    const ArenaShape one{asked.chunk_bytes, 1, asked.tags_per_chunk};
    grant.num_chunks = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(room / one.bytes_of(pages), 1, first.num_chunks));
    claim->set_bytes(grant.num_chunks * one.bytes_of(pages));
    grant.warnings.push_back("this rank takes " + std::to_string(grant.num_chunks) + " of " +
                             std::to_string(first.num_chunks) + " slots: " + *shortage);
  }
  claim->check();
  // The tags are not from the pool, and are too few for their own claim.
  if (pages == PageKind::kPool) check_memory_budget(first.tag_bytes(), options.machine);
  grant.claim = std::move(claim);
  return grant;
}

}  // namespace kvferry::cpu_tier
