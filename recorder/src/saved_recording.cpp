// SPDX-License-Identifier: Apache-2.0
#include "kvferry/recorder/saved_recording.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/own_descriptor.hpp"

#include "layout.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <span>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace kvferry::recorder {
namespace {

/// By segment: the first event that begins in it or after it.
std::vector<std::uint64_t> segments_of(const Recording& of) {
  const std::uint64_t ring_words = of.head().ring_bytes / kWord;
  const std::uint64_t segment_words = ring_words / kNumSegments;
  std::vector<std::uint64_t> table(kNumSegments, 0);
  const std::uint64_t end = of.end_position();
  std::uint64_t next = end > ring_words ? (end - ring_words) / segment_words : 0;
  const auto enter = [&](std::uint64_t position) {
    for (; next * segment_words <= position; ++next) table[next % kNumSegments] = position;
  };
  for (const Event& event : of) enter(event.position);
  enter(end);
  return table;
}

/// The ring with the newest words, each in its place.
std::vector<std::uint64_t> ring_of(const Recording& of) {
  std::vector<std::uint64_t> ring(of.head().ring_bytes / kWord, 0);
  for (const Event& event : of) {
    ring[event.position % ring.size()] = event.head.word();
    for (std::size_t i = 0; i < event.words.size(); ++i) {
      ring[(event.position + 1 + i) % ring.size()] = event.words[i];
    }
  }
  return ring;
}

void write_all(int file, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      throw ResourceError("cannot write " + path + ": " + std::strerror(error));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

/// Writes a recording at this place of the file. Returns the place of the next one.
std::uint64_t write_part(int file, std::uint64_t at, const Recording& recording,
                         const std::string& path) {
  const Places places = places_of(recording.head().config.size(), recording.head().ring_bytes);
  FileHead head = file_head(recording.head());
  head.magic = kMagic;
  head.published = head.claimed = recording.end_position();
  std::vector<char> config(places.segments - places.config, '\0');
  std::copy(recording.head().config.begin(), recording.head().config.end(), config.begin());
  const std::vector<std::uint64_t> segments = segments_of(recording);
  const std::vector<std::uint64_t> ring = ring_of(recording);
  if (::lseek(file, static_cast<off_t>(at), SEEK_SET) < 0) {
    const int error = errno;
    throw ResourceError("cannot write " + path + ": " + std::strerror(error));
  }
  write_all(file, std::as_bytes(std::span(&head, 1)), path);
  write_all(file, std::as_bytes(std::span(config)), path);
  write_all(file, std::as_bytes(std::span(segments)), path);
  write_all(file, std::as_bytes(std::span(ring)), path);
  return next_part(at, head);
}

}  // namespace

void save(const Recording& recording, const std::string& path) {
  const Recording* const only = &recording;
  save(std::span(&only, 1), path);
}

void save(std::span<const Recording* const> recordings, const std::string& path) {
  const OwnDescriptor file =
      OwnDescriptor::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
  if (!file) {
    const int error = errno;
    const std::string why = path + ": " + std::strerror(error);
    if (error == EEXIST)
      throw ConfigError("cannot write " + why + "; name a file that does not exist");
    throw ResourceError("cannot write " + why);
  }
  try {
    std::uint64_t at = 0;
    for (const Recording* const one : recordings) at = write_part(file.get(), at, *one, path);
  } catch (const ResourceError&) {
    ::unlink(path.c_str());
    throw;
  }
}

}  // namespace kvferry::recorder
