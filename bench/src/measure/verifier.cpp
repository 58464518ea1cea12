// SPDX-License-Identifier: Apache-2.0
#include "measure/verifier.hpp"

#include <fmt/format.h>

namespace kvferry::bench {

void Verifier::check(const PatternPieces& pieces, PatternKey key, std::string_view what) {
  if (corrupt_round_ == round_ && pieces.count > 0) {
    const PatternPiece piece = pieces.at(pieces.count / 2);
    piece.bytes[piece.bytes.size() / 2] ^= std::byte{1};
    corrupt_round_.reset();
  }
  const auto mismatch = find_mismatch(pieces, key);
  if (!mismatch) return;
  if (++num_mismatches_ == 1) {
    first_mismatch_ = fmt::format("round {}: {} {} of {}: byte {} of {} is wrong", round_, what,
                                  mismatch->piece + 1, pieces.count, mismatch->index,
                                  pieces.at(mismatch->piece).bytes.size());
  }
}

void Verifier::check_count(std::uint64_t found, std::uint64_t expected, std::string_view what) {
  if (corrupt_round_ == round_) {
    found ^= 1;
    corrupt_round_.reset();
  }
  if (found == expected) return;
  if (++num_mismatches_ == 1) {
    first_mismatch_ = fmt::format("round {}: {}: {} instead of {}", round_, what, found, expected);
  }
}

}  // namespace kvferry::bench
