// SPDX-License-Identifier: Apache-2.0
// Arena: in a tier that engine instances share.
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/memory/claim_turn.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/cpu_tier/peers/tier_header.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

void check_fit(const SharedTier& tier, std::uint64_t slot_bytes, std::uint32_t num_slots,
               const ArenaOptions& options) {
  if (options.replicas.is_shared()) {
    throw ConfigError("the shared tier " + tier.path().string() +
                      " cannot hold one memory for ranks with the same KV cache; set "
                      "share_replicated_kv: false, or leave shared_path out");
  }
  if (options.pages && *options.pages != tier.file().pages()) {
    throw ConfigError(std::string("pages of kind ") + to_string(*options.pages) +
                      " were asked for and the shared tier " + tier.path().string() + " has " +
                      to_string(tier.file().pages()) +
                      " ones: they are those of its file system; name a shared_path on a "
                      "hugetlbfs, or leave pages out");
  }
  if (slot_bytes != tier.shape().chunk_bytes || num_slots != tier.shape().num_chunks) {
    throw ConfigError("an arena of " + std::to_string(num_slots) + " chunks of " +
                      std::to_string(slot_bytes) + " bytes was asked for and the shared tier " +
                      tier.path().string() + " has " + to_string(tier.shape()) +
                      "; ask for chunks like these");
  }
}

/// Everything that bounds what the file can still take.
std::vector<MemoryLimit> limits_of(const SharedTier& tier, const MemoryClaim& claim,
                                   std::uint64_t missing_bytes) {
  std::vector<MemoryLimit> limits = claim.limits();
  const std::uint32_t num_ranks = tier.shape().num_ranks;
  if (auto mount = tier.file().limit_of_mount(missing_bytes * num_ranks)) {
    // All ranks' parts are in it.
    mount->room_bytes = mount->room_bytes / num_ranks * claim.num_ranks_to_come();
    limits.push_back(*std::move(mount));
  }
  return limits;
}

}  // namespace

Arena::Grant Arena::ask_of_tier(std::uint64_t slot_bytes, std::uint32_t num_slots,
                                const ArenaOptions& options) {
  const SharedTier& tier = options.shared->tier();
  check_fit(tier, slot_bytes, num_slots, options);
  const PageKind pages = tier.file().pages();
  Grant grant{pages, num_slots, 0, nullptr, nullptr, {}};
  // One for all that map this part: if each claimed what the file lacks, it would count as often.
  const std::uint64_t missing =
      options.shared->claims_arena() ? tier.missing_arena_bytes() : std::uint64_t{0};
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
    const std::uint64_t held = slot_bytes * num_slots - missing;
    const std::uint64_t room = room_bytes(limits) / num_ranks;
    grant.num_slots = static_cast<std::uint32_t>((held + room) / slot_bytes);
    if (grant.num_slots == 0) throw ResourceError(*shortage);
    claim->set_bytes(std::min(room, missing));
    grant.warnings.push_back("this rank takes " + std::to_string(grant.num_slots) + " of " +
                             std::to_string(num_slots) + " chunks: " + *shortage);
  }
  grant.claim = std::move(claim);
  return grant;
}

bool Arena::populate_in_tier(std::uint32_t first_slot, std::uint32_t end_slot,
                             const std::stop_token& stop) {
  const std::span<std::byte> part = bytes_of(first_slot, end_slot);
  if (const std::uint64_t missing = mapping_.missing_bytes(part); missing > 0) {
    check_part(missing);
    // The file keeps the preference: who makes a page resident says where.
    const MemoryPlacement& placement = options_.placement;
    if (placement.node) static_cast<void>(placement.topology->prefer(part, *placement.node));
    options_.shared->tier().file().reserve_part(
        options_.shared->arena_offset() + first_slot * slot_bytes_, part.size());
  }
  return populate(part, stop);
}

}  // namespace kvferry::cpu_tier
