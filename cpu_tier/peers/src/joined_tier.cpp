// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/joined_tier.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/file_lock.hpp"

#include <string>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

/// The byte of rank 0; those of the other ranks follow. It is beyond the contents of any file, and
/// below the byte in tier_hold.cpp.
constexpr std::uint64_t kArenaClaimByte = std::uint64_t{1} << 59U;

std::uint32_t checked_rank(const SharedTierOptions& options, std::uint32_t rank) {
  if (rank < options.num_ranks) return rank;
  throw ConfigError("rank " + std::to_string(rank) + " of a shared tier for " +
                    std::to_string(options.num_ranks) +
                    " ranks; shared_path requires all ranks of an engine on one node");
}

}  // namespace

std::unique_ptr<JoinedTier> JoinedTier::join(const SharedTierOptions& options,
                                             const TierDirectory::Identity& identity) {
  return std::unique_ptr<JoinedTier>(new JoinedTier(SharedTier::make_or_open(options), identity));
}

JoinedTier::JoinedTier(std::unique_ptr<SharedTier> tier, const TierDirectory::Identity& identity)
    : tier_(std::move(tier)),
      directory_(tier_->metadata(), tier_->places(), tier_->shape(),
                 {tier_->path(), tier_->file().descriptor()}, identity) {}

JoinedRank::JoinedRank(const SharedTierOptions& options, std::string_view instance,
                       std::uint32_t rank)
    : rank_(checked_rank(options, rank)),
      tier_(SharedTier::make_or_open(options)),
      lock_({tier_->path(), tier_->file().descriptor()}, lock_base_of(instance), rank + 1) {}

bool JoinedRank::claims_arena() const {
  return lock_bytes(tier_->file().descriptor(), kArenaClaimByte + rank_, 1) == 0;
}

}  // namespace kvferry::cpu_tier
