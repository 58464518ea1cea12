// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <chrono>
#include <cstdint>
#include <string>

namespace kvferry::cpu_tier {

/// Processes of one machine that hold the same bytes and keep one copy of them.
struct ReplicaGroup {
  /// The same in all members, and in no other group of the machine.
  std::string name;
  /// Members; 1: this process is alone, and the memory is its own.
  std::uint32_t size = 1;
  /// Of this member. The first one makes the memory.
  std::uint32_t index = 0;
  /// How long a member waits for the first one, and for a member that has not joined yet.
  std::chrono::nanoseconds patience = std::chrono::seconds(60);

  [[nodiscard]] bool has_others() const { return size > 1; }
  /// Each piece has one *home*, which alone makes it resident, so that it lies on that member's
  /// NUMA node, and alone writes it, so that each link carries its part.
  [[nodiscard]] std::uint32_t home_of(PieceId piece) const { return piece.value() % size; }
  [[nodiscard]] bool is_home_of(PieceId piece) const { return home_of(piece) == index; }
};

}  // namespace kvferry::cpu_tier
