// SPDX-License-Identifier: Apache-2.0
#include "interpreter/knowledge.hpp"

#include <algorithm>

namespace kvferry::ptx {

bool Knowledge::knows_read(std::uint32_t lane, std::uint32_t group) const {
  const auto found = groups_read.find(lane);
  return found != groups_read.end() && found->second > group;
}

bool Knowledge::knows_complete(std::uint32_t barrier, std::uint64_t phase) const {
  const auto found = phases_complete.find(barrier);
  return found != phases_complete.end() && found->second > phase;
}

void Knowledge::learn(const Knowledge& other) {
  for (const auto& [lane, count] : other.groups_read) {
    groups_read[lane] = std::max(groups_read[lane], count);
  }
  for (const auto& [barrier, count] : other.phases_complete) {
    phases_complete[barrier] = std::max(phases_complete[barrier], count);
  }
  barriers_ready.insert(other.barriers_ready.begin(), other.barriers_ready.end());
}

}  // namespace kvferry::ptx
