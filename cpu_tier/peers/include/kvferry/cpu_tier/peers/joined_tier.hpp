// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/member_lock.hpp"
#include "kvferry/cpu_tier/peers/shared_tier.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"

#include <cstdint>
#include <memory>
#include <string_view>

namespace kvferry::cpu_tier {

/// An engine instance's scheduler in a shared tier: the open file, and what it does with the
/// metadata. Left by its destructor; what it committed stays for others and, if the file does, for
/// later.
class JoinedTier {
 public:
  /// Throws as SharedTier::make_or_open() and TierDirectory; nothing is left behind then.
  [[nodiscard]] static std::unique_ptr<JoinedTier> join(const SharedTierOptions& options,
                                                        const TierDirectory::Identity& identity);

  [[nodiscard]] const SharedTier& tier() const { return *tier_; }
  [[nodiscard]] TierDirectory& directory() { return directory_; }
  [[nodiscard]] const TierDirectory& directory() const { return directory_; }

 private:
  JoinedTier(std::unique_ptr<SharedTier> tier, const TierDirectory::Identity& identity);

  /// First, so that the record is free before the file is let go.
  std::unique_ptr<SharedTier> tier_;
  TierDirectory directory_;
};

/// One rank of an engine instance in a shared tier: the open file, in which it has an arena, and
/// the proof that it lives. As long as it does, what the instance has is not swept.
class JoinedRank {
 public:
  /// `instance` is the name in its scheduler's identity; which of them comes first does not matter.
  /// Throws ConfigError if the tier has no such rank, and as SharedTier::make_or_open() and
  /// MemberLock.
  JoinedRank(const SharedTierOptions& options, std::string_view instance, std::uint32_t rank);

  [[nodiscard]] const SharedTier& tier() const { return *tier_; }
  [[nodiscard]] std::uint32_t rank() const { return rank_; }
  [[nodiscard]] std::uint64_t arena_offset() const { return tier_->arena_offset(rank_); }
  /// Whether this process is the one that claims what this rank's arena lacks, for all that map it:
  /// from the first call on that says so.
  [[nodiscard]] bool claims_arena() const;

 private:
  std::uint32_t rank_;
  std::unique_ptr<SharedTier> tier_;
  MemberLock lock_;
};

}  // namespace kvferry::cpu_tier
