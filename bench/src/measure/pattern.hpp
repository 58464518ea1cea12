// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

/// Bytes that show where and when they were written. A pattern is an endless row of bytes,
/// different for each key, and nowhere equal to itself shifted by any number of whole words. So a
/// check finds stale, misplaced and missing bytes. Several threads work on large memory.
namespace kvferry::bench {

enum class PatternKey : std::uint64_t {};

/// The key of a round; rounds of one seed differ in every word.
[[nodiscard]] PatternKey pattern_key(std::uint64_t seed, std::uint64_t round);

/// Memory that is, or will be, bytes [offset, offset + bytes.size()) of a pattern.
struct PatternPiece {
  std::span<std::byte> bytes;
  std::uint64_t offset = 0;
};

/// `count` pieces by number. The function that returns them can be called from several threads at
/// once, and does not throw. All are about as large as the first.
struct PatternPieces {
  std::size_t count = 0;
  std::function<PatternPiece(std::size_t)> at;
};

void write_pattern(const PatternPiece& piece, PatternKey key);
void write_pattern(const PatternPieces& pieces, PatternKey key);

/// A byte that differs from the pattern.
struct PatternMismatch {
  std::size_t piece = 0;
  std::uint64_t index = 0;  ///< In the piece.
};

/// The first wrong byte of the first wrong piece.
[[nodiscard]] std::optional<PatternMismatch> find_mismatch(const PatternPieces& pieces,
                                                           PatternKey key);

}  // namespace kvferry::bench
