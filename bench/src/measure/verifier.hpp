// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/pattern.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvferry::bench {

/// Gives each round a pattern of its own and holds what arrived against it; without patterns,
/// counts against each other.
class Verifier {
 public:
  /// `corrupt_round`: spoil a byte, or a count, of what is checked in this round, from 1, so that
  /// tests see a mismatch found.
  explicit Verifier(std::uint64_t seed, std::optional<std::uint64_t> corrupt_round = std::nullopt)
      : seed_(seed), corrupt_round_(corrupt_round) {}

  /// A new round; nothing that was written before passes in it.
  [[nodiscard]] PatternKey next_round() { return pattern_key(seed_, ++round_); }
  /// Whether all pieces are the pattern's; if not, that counts as one mismatch of `what`.
  void check(const PatternPieces& pieces, PatternKey key, std::string_view what);
  /// The same of a count that has to be `expected`.
  void check_count(std::uint64_t found, std::uint64_t expected, std::string_view what);

  [[nodiscard]] std::uint64_t num_mismatches() const { return num_mismatches_; }
  /// Round, what and where; empty if there was none.
  [[nodiscard]] const std::string& first_mismatch() const { return first_mismatch_; }

 private:
  const std::uint64_t seed_;
  std::optional<std::uint64_t> corrupt_round_;
  std::uint64_t round_ = 0;
  std::uint64_t num_mismatches_ = 0;
  std::string first_mismatch_;
};

}  // namespace kvferry::bench
