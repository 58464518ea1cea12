// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::connector {

/// Counts the damaged blocks that each rank has found, and decides whether its memory or its link
/// can still be trusted. Called by the scheduler's thread alone.
class DamageRecord {
 public:
  /// If this many loads in a row of one rank find new damaged blocks, that is no accident.
  static constexpr std::uint32_t kMostInARow = 3;

  explicit DamageRecord(std::uint32_t world_size)
      : in_a_row_(world_size), num_damaged_(world_size) {}

  /// A load has ended well on the rank.
  void note_good_load(RankId rank) { in_a_row_.at(rank.value()) = 0; }
  /// A load has ended on the rank with this many damaged blocks. `num_new` of them were not known
  /// before: several requests can load one damaged block at the same time.
  void note_damaged_load(RankId rank, std::size_t num_damaged, std::size_t num_new);
  /// The rank has read a slot again without a load, and it was damaged.
  void note_scrubbed(RankId rank) { ++num_damaged_[rank.value()]; }
  /// The rank with too many damaged loads in a row. It stays distrusted.
  [[nodiscard]] std::optional<RankId> distrusted() const { return distrusted_; }
  /// Damaged blocks by rank, since construction.
  [[nodiscard]] std::span<const std::uint64_t> num_damaged() const { return num_damaged_; }

 private:
  std::vector<std::uint32_t> in_a_row_;  ///< Loads with new damage in a row up to now, by rank.
  std::vector<std::uint64_t> num_damaged_;
  std::optional<RankId> distrusted_;
};

}  // namespace kvferry::connector
