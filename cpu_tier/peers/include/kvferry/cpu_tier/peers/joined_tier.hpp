// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/member_lock.hpp"
#include "kvferry/cpu_tier/peers/shared_tier.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"

#include <cstdint>
#include <memory>
#include <string_view>

namespace kvferry::cpu_tier {

/// An engine instance's scheduler in a shared tier: the open file, and the directory that changes
/// the metadata. The destructor leaves the tier. Committed blocks stay for other instances and, if
/// the file is kept, for later ones.
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

  /// Declared first, so that the record is freed before the file is released.
  std::unique_ptr<SharedTier> tier_;
  TierDirectory directory_;
};

/// One rank of an engine instance in a shared tier: the open file, which has its arena, and the
/// lock that proves that it lives. While it lives, no other instance cleans up after its instance.
class JoinedRank {
 public:
  /// `instance` is the name in its scheduler's identity. Rank and scheduler can join in any order.
  /// Throws ConfigError if the tier has no such rank, and as SharedTier::make_or_open() and
  /// MemberLock.
  JoinedRank(const SharedTierOptions& options, std::string_view instance, std::uint32_t rank);

  [[nodiscard]] const SharedTier& tier() const { return *tier_; }
  [[nodiscard]] std::uint32_t rank() const { return rank_; }
  [[nodiscard]] std::uint64_t arena_offset() const { return tier_->arena_offset(rank_); }
  /// Whether this process claims the missing memory of this rank's arena, for all processes that
  /// map it. After the first call that returns true, it stays so.
  [[nodiscard]] bool claims_arena() const;

 private:
  std::uint32_t rank_;
  std::unique_ptr<SharedTier> tier_;
  MemberLock lock_;
};

}  // namespace kvferry::cpu_tier
