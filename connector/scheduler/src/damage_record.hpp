// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::connector {

/// How many damaged blocks each rank has found, and whether its memory or its link can be trusted
/// still. Called by the scheduler's thread alone.
class DamageRecord {
 public:
  /// So many loads in a row with damaged blocks, of one rank, are no accident.
  static constexpr std::uint32_t kMostInARow = 3;

  explicit DamageRecord(std::uint32_t world_size)
      : in_a_row_(world_size), num_damaged_(world_size) {}

  /// A load has ended on the rank: with so many damaged blocks, or well (0).
  void note_load(RankId rank, std::size_t num_damaged);
  /// The rank has read a slot again without a load, and it was damaged.
  void note_scrubbed(RankId rank) { ++num_damaged_[rank.value()]; }
  /// The rank of which too many loads in a row were damaged. It stays so.
  [[nodiscard]] std::optional<RankId> distrusted() const { return distrusted_; }
  /// By rank, since construction.
  [[nodiscard]] std::span<const std::uint64_t> num_damaged() const { return num_damaged_; }

 private:
  std::vector<std::uint32_t> in_a_row_;  ///< Damaged loads up to the last load, by rank.
  std::vector<std::uint64_t> num_damaged_;
  std::optional<RankId> distrusted_;
};

}  // namespace kvferry::connector
