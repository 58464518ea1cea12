// SPDX-License-Identifier: Apache-2.0
#include "measure/pattern.hpp"

#include "kvferry/base/mixed_bits.hpp"

#include "measure/parallel_parts.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

namespace kvferry::bench {
namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);
constexpr std::size_t kChunkWords = 512;
// Starting a thread costs some 20 us, as much as 100 KB of memory traffic.
constexpr std::uint64_t kGrainBytes = std::uint64_t{1} << 20U;

// A sum and a shift, which compilers vectorise. Both steps can be undone, so words are distinct.
std::uint64_t word_at(PatternKey key, std::uint64_t index) {
  const std::uint64_t sum = static_cast<std::uint64_t>(key) + index * 0x9e3779b97f4a7c15U;
  return sum ^ (sum >> 29U);
}

/// Calls `use(at, bytes, size)` for one stretch of the piece after the other, with the pattern's
/// bytes there, for as long as it returns true.
template <class Use>
void for_each_stretch(const PatternPiece& piece, PatternKey key, Use use) {
  std::array<std::uint64_t, kChunkWords> chunk;  // written before it is read
  std::uint64_t done = 0;
  while (done < piece.bytes.size()) {
    const std::uint64_t first_word = (piece.offset + done) / kWordBytes;
    const std::uint64_t skipped = (piece.offset + done) % kWordBytes;
    const std::uint64_t size =
        std::min<std::uint64_t>(piece.bytes.size() - done, sizeof(chunk) - skipped);
    const std::uint64_t num_words = (skipped + size + kWordBytes - 1) / kWordBytes;
    for (std::uint64_t i = 0; i < num_words; ++i) chunk[i] = word_at(key, first_word + i);
    if (!use(done, reinterpret_cast<const std::byte*>(chunk.data()) + skipped, size)) return;
    done += size;
  }
}

void write_alone(const PatternPiece& piece, PatternKey key) {
  for_each_stretch(piece, key, [&](std::uint64_t at, const std::byte* bytes, std::uint64_t size) {
    std::memcpy(piece.bytes.data() + at, bytes, size);
    return true;
  });
}

std::optional<std::uint64_t> mismatch_in(const PatternPiece& piece, PatternKey key) {
  std::optional<std::uint64_t> index;
  for_each_stretch(piece, key, [&](std::uint64_t at, const std::byte* bytes, std::uint64_t size) {
    const std::byte* const found = piece.bytes.data() + at;
    if (std::memcmp(found, bytes, size) == 0) return true;
    index =
        at + static_cast<std::uint64_t>(std::mismatch(found, found + size, bytes).first - found);
    return false;
  });
  return index;
}

/// Splits a single large piece into parts of kGrainBytes for several threads.
PatternPieces parts_of(const PatternPiece& piece) {
  return {(piece.bytes.size() + kGrainBytes - 1) / kGrainBytes, [piece](std::size_t i) {
            const std::uint64_t begin = i * kGrainBytes;
            const std::uint64_t size =
                std::min<std::uint64_t>(kGrainBytes, piece.bytes.size() - begin);
            return PatternPiece{piece.bytes.subspan(begin, size), piece.offset + begin};
          }};
}

bool is_one_large(const PatternPieces& pieces) {
  return pieces.count == 1 && pieces.at(0).bytes.size() > kGrainBytes;
}

/// The number of pieces that are worth a thread.
std::uint64_t grain(const PatternPieces& pieces) {
  const std::uint64_t size = std::max<std::uint64_t>(pieces.at(0).bytes.size(), 1);
  return std::max<std::uint64_t>(kGrainBytes / size, 1);
}

}  // namespace

PatternKey pattern_key(std::uint64_t seed, std::uint64_t round) {
  return PatternKey{mixed_bits(mixed_bits(seed) + round)};
}

void write_pattern(const PatternPiece& piece, PatternKey key) {
  write_pattern(PatternPieces{1, [&](std::size_t) { return piece; }}, key);
}

void write_pattern(const PatternPieces& pieces, PatternKey key) {
  if (pieces.count == 0) return;
  if (is_one_large(pieces)) return write_pattern(parts_of(pieces.at(0)), key);
  for_each_part(pieces.count, grain(pieces), [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) write_alone(pieces.at(i), key);
  });
}

std::optional<PatternMismatch> find_mismatch(const PatternPieces& pieces, PatternKey key) {
  if (pieces.count == 0) return std::nullopt;
  if (is_one_large(pieces)) {
    const auto in_part = find_mismatch(parts_of(pieces.at(0)), key);
    if (!in_part) return std::nullopt;
    return PatternMismatch{0, in_part->piece * kGrainBytes + in_part->index};
  }
  std::atomic<std::size_t> first{pieces.count};
  for_each_part(pieces.count, grain(pieces), [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) {
      if (!mismatch_in(pieces.at(i), key)) continue;
      std::size_t known = first;
      while (i < known && !first.compare_exchange_weak(known, i)) {
      }
      return;
    }
  });
  if (first == pieces.count) return std::nullopt;
  return PatternMismatch{first, mismatch_in(pieces.at(first), key).value_or(0)};
}

}  // namespace kvferry::bench
