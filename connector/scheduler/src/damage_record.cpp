// SPDX-License-Identifier: Apache-2.0
#include "damage_record.hpp"

namespace kvferry::connector {

void DamageRecord::note_damaged_load(RankId rank, std::size_t num_damaged, std::size_t num_new) {
  num_damaged_.at(rank.value()) += num_damaged;
  if (num_new == 0) return;
  std::uint32_t& in_a_row = in_a_row_[rank.value()];
  ++in_a_row;
  if (in_a_row == kMostInARow && !distrusted_) distrusted_ = rank;
}

}  // namespace kvferry::connector
