// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/host_link.hpp"

#include <chrono>
#include <cstdint>

namespace kvferry::gpu {

/// What the simulated link does to the n-th copy call. Everything random is a hash of (seed, n) and
/// not the next number of a generator, so that it does not depend on which stream's thread asks
/// first. Immutable.
class LinkModel {
 public:
  /// Throws ConfigError if a figure is out of range.
  explicit LinkModel(const HostLinkOptions& options);

  /// Whether copies take turns and time at all.
  [[nodiscard]] bool simulated() const;
  /// Whether it does anything to a copy: simulated(), or copies can fail.
  [[nodiscard]] bool touches_copies() const;
  /// How long a copy occupies its direction of the link.
  [[nodiscard]] std::chrono::nanoseconds occupancy(std::uint64_t copy, CopyDirection direction,
                                                   std::uint64_t bytes) const;
  /// What the first copy of a direction takes longer.
  [[nodiscard]] std::chrono::nanoseconds stall() const { return options_.stall; }
  [[nodiscard]] bool fails(std::uint64_t copy) const;
  /// Of the waiting copies, the one with the lowest rank goes next.
  [[nodiscard]] std::uint64_t rank(std::uint64_t copy) const;
  /// How long a copy is kept from queueing, so that others can overtake it.
  [[nodiscard]] std::chrono::nanoseconds hold_back(std::uint64_t copy) const;

 private:
  enum class Purpose : std::uint64_t { kJitter = 1, kFailure, kRank, kHoldBack };
  [[nodiscard]] std::uint64_t draw(Purpose purpose, std::uint64_t copy) const;

  HostLinkOptions options_;
};

}  // namespace kvferry::gpu
