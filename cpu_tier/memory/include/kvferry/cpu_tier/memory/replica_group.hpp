// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <chrono>
#include <cstdint>
#include <string>

namespace kvferry::cpu_tier {

/// Processes of one machine that hold the same bytes and together keep one copy.
struct ReplicaGroup {
  /// The same in all members, and different in every other group of the machine.
  std::string name;
  /// Number of members; 1: this process is alone and uses its own memory.
  std::uint32_t size = 1;
  /// Index of this member. The first member creates the memory.
  std::uint32_t index = 0;
  /// How long a member waits for the first member, and for a member that has not joined yet.
  std::chrono::nanoseconds patience = std::chrono::seconds(60);

  [[nodiscard]] bool has_others() const { return size > 1; }
  /// Each piece has one *home*. Only the home makes the piece resident, so it lies on the home's
  /// NUMA node. Only the home writes it, so each link carries its share.
  [[nodiscard]] std::uint32_t home_of(PieceId piece) const { return piece.value() % size; }
  [[nodiscard]] bool is_home_of(PieceId piece) const { return home_of(piece) == index; }
};

}  // namespace kvferry::cpu_tier
