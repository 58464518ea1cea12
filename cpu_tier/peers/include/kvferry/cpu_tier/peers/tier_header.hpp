// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/file_header.hpp"
#include "kvferry/cpu_tier/peers/tier_layout.hpp"

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace kvferry::cpu_tier {

class SharedFile;

/// The first page of a shared tier's file. It is written before the file has a name, and never
/// again.
struct TierHeader {
  static constexpr FileHeader::Magic kMagic = {'K', 'V', 'F', 'E', 'R', 'R', 'Y', 'T'};
  /// Rises with every change of the structures in tier_layout.hpp and this file, or of those to
  /// which they refer.
  static constexpr std::uint32_t kVersion = 7;

  FileHeader file;
  std::uint64_t capacity_bytes;  ///< Of all ranks' arenas, as requested.
  std::uint64_t chunk_bytes;
  std::uint64_t metadata_bytes;  ///< Where the arenas begin.
  std::uint32_t num_chunks;
  std::uint32_t max_chunk_slots;
  std::uint32_t num_ranks;
  std::uint32_t unused;
  std::array<char, 64> made_by;  ///< Text, for people.
  std::uint64_t check;           ///< Checksum of all fields before it.

  /// The correct value of `check`.
  [[nodiscard]] std::uint64_t expected_check() const;

  [[nodiscard]] TierShape shape() const {
    return {num_chunks, chunk_bytes, max_chunk_slots, num_ranks};
  }
};
static_assert(sizeof(TierHeader) <= kTierPageBytes);

/// The header that this process would write.
[[nodiscard]] TierHeader make_tier_header(const TierShape& shape, const TierPlaces& places,
                                          std::uint64_t capacity_bytes,
                                          const std::filesystem::path& proc = "/proc");
/// Returns nothing if it is not the file of a shared tier.
[[nodiscard]] std::optional<TierHeader> read_tier_header(int descriptor);
/// "64 chunks of 65536 bytes with up to 64 slots each, on 1 rank".
[[nodiscard]] std::string to_string(const TierShape& shape);

/// The message texts for a tier's file.
[[nodiscard]] FileInQuestion tier_in_question(const std::filesystem::path& path);
/// Throws ConfigError for a damaged header of this version.
void check_whole(const TierHeader& header, const std::filesystem::path& path);
/// Throws ConfigError unless the file is a tier that this program can read (made in this boot of
/// the machine or an earlier one), is not damaged, and is as long as its header says. Returns where
/// its parts are.
[[nodiscard]] TierPlaces check_tier(const TierHeader& header, const SharedFile& file);

}  // namespace kvferry::cpu_tier
