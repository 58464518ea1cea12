// SPDX-License-Identifier: Apache-2.0
#include "interpreter/bulk_groups.hpp"

#include <algorithm>

namespace kvferry::ptx {

std::uint32_t BulkGroups::add_store() {
  groups_.resize(num_committed_ + 1);
  ++groups_.back().num_unread;
  ++groups_.back().num_unwritten;
  return num_committed_;
}

void BulkGroups::commit() { groups_.resize(++num_committed_); }

bool BulkGroups::have_read(std::uint32_t count) const {
  return std::all_of(groups_.begin(), groups_.begin() + count,
                     [](const Group& group) { return group.num_unread == 0; });
}

bool BulkGroups::have_written(std::uint32_t count) const {
  return std::all_of(groups_.begin(), groups_.begin() + count,
                     [](const Group& group) { return group.num_unwritten == 0; });
}

}  // namespace kvferry::ptx
