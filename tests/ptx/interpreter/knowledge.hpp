// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>

namespace kvferry::ptx {

/// What one lane knows to have happened, whatever the copy unit did by chance. It learns by waiting
/// (mbarrier, bulk groups) and from other lanes at a warp's barrier, or from those that arrived at
/// an mbarrier that it saw complete. A hazard is an access that needs more than the lane knows.
struct Knowledge {
  /// Of each lane, by its number: its first so many bulk groups have read their stage.
  std::map<std::uint32_t, std::uint32_t> groups_read;
  /// Of each mbarrier, by its address: so many phases are complete.
  std::map<std::uint32_t, std::uint64_t> phases_complete;
  /// The mbarriers that are initialised, and fenced after it.
  std::set<std::uint32_t> barriers_ready;

  [[nodiscard]] bool knows_read(std::uint32_t lane, std::uint32_t group) const;
  [[nodiscard]] bool knows_complete(std::uint32_t barrier, std::uint64_t phase) const;
  void learn(const Knowledge& other);
};

}  // namespace kvferry::ptx
