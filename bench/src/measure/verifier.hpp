// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/pattern.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvferry::bench {

/// Gives each round its own pattern, and compares the bytes that arrived with it. Can also compare
/// counts.
class Verifier {
 public:
  /// `corrupt_round`: number of a round, from 1, in which one checked byte or count is corrupted,
  /// so that tests can see that mismatches are found.
  explicit Verifier(std::uint64_t seed, std::optional<std::uint64_t> corrupt_round = std::nullopt)
      : seed_(seed), corrupt_round_(corrupt_round) {}

  /// Begins a new round. Bytes of earlier rounds do not pass in it.
  [[nodiscard]] PatternKey next_round() { return pattern_key(seed_, ++round_); }
  /// Returns whether all pieces match the pattern. If not, that counts as one mismatch of `what`.
  void check(const PatternPieces& pieces, PatternKey key, std::string_view what);
  /// The same for a count that has to be `expected`.
  void check_count(std::uint64_t found, std::uint64_t expected, std::string_view what);

  [[nodiscard]] std::uint64_t num_mismatches() const { return num_mismatches_; }
  /// The first mismatch: round, what and where; empty if there was none.
  [[nodiscard]] const std::string& first_mismatch() const { return first_mismatch_; }

 private:
  const std::uint64_t seed_;
  std::optional<std::uint64_t> corrupt_round_;
  std::uint64_t round_ = 0;
  std::uint64_t num_mismatches_ = 0;
  std::string first_mismatch_;
};

}  // namespace kvferry::bench
