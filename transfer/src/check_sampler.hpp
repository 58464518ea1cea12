// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/transfer/transfer_engine.hpp"

#include "known_blocks.hpp"

#include <chrono>
#include <cstdint>

namespace kvferry::transfer {

/// Chooses the pieces of loads that are checked. Used by the transfer thread only.
///
/// With Verification::kSampled, a piece is checked if it loads a slot for the first time since
/// another engine wrote it. In addition one piece in period() is checked, so that checks take at
/// most kCostShare of the time of all loads.
class CheckSampler {
 public:
  /// At least one piece in this many is checked, however expensive checks are.
  static constexpr std::uint32_t kMaxPeriod = 256;
  /// At most one piece in this many is checked, however cheap checks are: the time of the other
  /// pieces shows what checks cost.
  static constexpr std::uint32_t kMinPeriod = 2;
  /// Our choice: an operator does not notice 1 %.
  static constexpr double kCostShare = 0.01;

  CheckSampler(Verification verify, const KnownBlocks& known) : verify_(verify), known_(known) {}

  /// Whether to check the blocks of this piece of a load. Call it once per piece.
  [[nodiscard]] bool chooses(const Piece& load);
  /// Whether it wants to learn().
  [[nodiscard]] bool learns() const { return verify_ == Verification::kSampled; }
  /// The device's time for a piece of a load, including its check; 0: unknown.
  void learn(bool is_checked, std::uint64_t bytes, std::chrono::nanoseconds time);
  /// One piece in this many is checked. It is kMinPeriod until the costs are known.
  [[nodiscard]] std::uint32_t period() const;

 private:
  /// A moving average of the time per byte.
  struct Pace {
    double ns_per_byte = 0;
    std::uint32_t num_samples = 0;
  };

  [[nodiscard]] bool has_unknown(const Piece& load) const;

  const Verification verify_;
  const KnownBlocks& known_;
  std::uint32_t num_unchecked_ = 0;  ///< Pieces since the last periodic check.
  Pace checked_;
  Pace unchecked_;
};

}  // namespace kvferry::transfer
