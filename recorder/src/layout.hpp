// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/recorder/recording.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace kvferry::recorder {

/// The version of the file: of this layout, and of the events (event.hpp). A reader refuses another
/// one.
inline constexpr std::uint32_t kFileVersion = 2;
inline constexpr std::array<char, 8> kMagic{'K', 'V', 'F', 'R', 'E', 'C', 'O', 'R'};

/// The beginning of a recording's file. The configuration's text follows, then the segments' first
/// events, then the ring.
///
/// The ring is divided into kNumSegments segments. `claimed` is the end of the segments that the
/// writer may have begun to overwrite; it is set before a word of a segment is written. For each
/// segment the table has the position of the first event that begins in it or after it; it is set
/// before that event counts. So a reader finds the oldest event whose words are still there: the
/// first one of the oldest segment that is neither claimed nor entered again.
///
/// A file that was saved can have several recordings, its *parts*, each with a head of its own.
struct FileHead {
  std::array<char, 8> magic;  ///< Written last.
  std::uint32_t file_version;
  std::uint32_t wire_version;
  std::uint64_t head_bytes;    ///< Size of this.
  std::uint64_t config_bytes;  ///< Without the zeros up to a multiple of 8.
  std::uint64_t ring_bytes;
  std::uint64_t file_bytes;
  std::array<char, 32> version;  ///< Zero-terminated.
  std::array<char, 40> boot_id;  ///< Zero-terminated.
  std::int64_t pid;
  std::int64_t wall_ns;    ///< Since 1970, when the recording began.
  std::int64_t steady_ns;  ///< By the steady clock, at the same moment.
  std::array<std::uint64_t, 4> unused;
  /// Positions are counted in words since the beginning. Each has a cache line of its own.
  alignas(64) std::uint64_t published;  ///< The events before it can be read.
  alignas(64) std::uint64_t claimed;
};
static_assert(std::is_trivially_copyable_v<FileHead> && sizeof(FileHead) % 64 == 0);

inline constexpr std::uint64_t kWord = sizeof(std::uint64_t);
inline constexpr std::uint64_t kNumSegments = 256;
inline constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 24U;

/// A part begins at a multiple of this, which every machine can map.
inline constexpr std::uint64_t kPartAlignment = std::uint64_t{1} << 16U;

/// Where the part behind one that begins `at` begins.
[[nodiscard]] inline std::uint64_t next_part(std::uint64_t at, const FileHead& head) {
  return at + (head.file_bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

/// Where the parts of a recording begin, from its own beginning.
struct Places {
  std::uint64_t config;
  std::uint64_t segments;
  std::uint64_t ring;
  std::uint64_t end;
};
[[nodiscard]] constexpr Places places_of(std::uint64_t config_bytes, std::uint64_t ring_bytes) {
  const std::uint64_t segments = sizeof(FileHead) + (config_bytes + 7) / 8 * 8;
  const std::uint64_t ring = segments + kNumSegments * kWord;
  return {sizeof(FileHead), segments, ring, ring + ring_bytes};
}

/// The head of a file without its magic, and without any event.
[[nodiscard]] inline FileHead file_head(const RecordingHead& of) {
  const auto set = [](auto& to, std::string_view text) {
    std::copy_n(text.data(), std::min(text.size(), to.size() - 1), to.data());
  };
  FileHead head{};
  head.file_version = kFileVersion;
  head.wire_version = of.wire_version;
  head.head_bytes = sizeof(FileHead);
  head.config_bytes = of.config.size();
  head.ring_bytes = of.ring_bytes;
  head.file_bytes = places_of(of.config.size(), of.ring_bytes).end;
  set(head.version, of.version);
  set(head.boot_id, of.boot_id);
  head.pid = of.pid;
  head.wall_ns = of.wall.count();
  head.steady_ns = of.steady.count();
  return head;
}

}  // namespace kvferry::recorder
