// SPDX-License-Identifier: Apache-2.0
#include "damage_record.hpp"

namespace kvferry::connector {

void DamageRecord::note_load(RankId rank, std::size_t num_damaged) {
  std::uint32_t& in_a_row = in_a_row_.at(rank.value());
  in_a_row = num_damaged == 0 ? 0 : in_a_row + 1;
  num_damaged_[rank.value()] += num_damaged;
  if (in_a_row == kMostInARow && !distrusted_) distrusted_ = rank;
}

}  // namespace kvferry::connector
