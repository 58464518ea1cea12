// SPDX-License-Identifier: Apache-2.0
#include "kvferry/recorder/recorder.hpp"

#include "kvferry/base/boot_id.hpp"
#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/streaming_copy.hpp"

#include "fence.hpp"
#include "layout.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvferry::recorder {
namespace {

std::chrono::nanoseconds nanoseconds_of(auto time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch());
}

void check_size(std::uint64_t ring_bytes, std::size_t config_bytes) {
  if (!std::has_single_bit(ring_bytes) || ring_bytes < Recorder::kMinRingBytes ||
      ring_bytes > Recorder::kMaxRingBytes) {
    throw ConfigError(
        "a recorder of " + std::to_string(ring_bytes) + " bytes; expected a power of two from " +
        std::to_string(Recorder::kMinRingBytes) + " to " + std::to_string(Recorder::kMaxRingBytes));
  }
  if (config_bytes > kMaxConfigBytes) {
    throw ConfigError("the configuration of a recording has " + std::to_string(config_bytes) +
                      " bytes; expected at most " + std::to_string(kMaxConfigBytes));
  }
}

void copy_plain(void* to, const void* from, std::size_t bytes) noexcept {
  std::memcpy(to, from, bytes);
}

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  const int error = errno;
  throw ResourceError(what + " " + path + ": " + std::strerror(error) +
                      "; choose another place for the recorder, make it smaller, or switch it off");
}

}  // namespace

Recorder::Recorder(const std::string& path, std::uint64_t ring_bytes, const RecordedBy& by)
    : path_(path) {
  check_size(ring_bytes, by.config.size());
  num_bytes_ = places_of(by.config.size(), ring_bytes).end;
  file_ =
      OwnDescriptor::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (!file_) {
    if (errno == EEXIST) {
      throw ConfigError("the recorder's file " + path +
                        " exists already; remove it, or name another one");
    }
    fail("cannot create the recorder's file", path);
  }
  // Writes to a hole for which there is no memory would be a SIGBUS.
  const int error = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(num_bytes_));
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = ::mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                    file_.get(), 0);
  } else {
    errno = error;
  }
  if (memory == MAP_FAILED) {
    const int why = errno;
    ::unlink(path.c_str());
    errno = why;
    fail("cannot take " + std::to_string(num_bytes_) + " bytes for the recorder's file", path);
  }
  base_ = static_cast<std::byte*>(memory);
  // Before the file is a recording (lay_out()), so one that is found unlocked is a dead process's.
  static_cast<void>(::flock(file_.get(), LOCK_EX | LOCK_NB));
  lay_out(ring_bytes, by);
}

Recorder::Recorder(std::uint64_t ring_bytes, const RecordedBy& by) {
  check_size(ring_bytes, by.config.size());
  num_bytes_ = places_of(by.config.size(), ring_bytes).end;
  void* memory = ::mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("cannot take memory for", "a recorder");
  base_ = static_cast<std::byte*>(memory);
  lay_out(ring_bytes, by);
}

Recorder::~Recorder() { ::munmap(base_, num_bytes_); }

void Recorder::lay_out(std::uint64_t ring_bytes, const RecordedBy& by) {
  const Places places = places_of(by.config.size(), ring_bytes);
  auto* head = reinterpret_cast<FileHead*>(base_);
  *head = file_head({by.version, by.wire_version, present_boot(), ::getpid(),
                     nanoseconds_of(std::chrono::system_clock::now()),
                     nanoseconds_of(std::chrono::steady_clock::now()), ring_bytes, by.config});
  std::memcpy(base_ + places.config, by.config.data(), by.config.size());
  segments_ = reinterpret_cast<std::uint64_t*>(base_ + places.segments);
  ring_ = reinterpret_cast<std::uint64_t*>(base_ + places.ring);
  published_ = &head->published;
  shared_claimed_ = &head->claimed;
  const std::uint64_t num_words = ring_bytes / sizeof(std::uint64_t);
  mask_ = num_words - 1;
  segment_words_ = num_words / kNumSegments;
  next_segment_ = segment_words_;
  max_words_ =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(EventHead::kMaxWords, num_words / 8));
  claim_more(0);
  fence(std::memory_order_release);
  head->magic = kMagic;
}

void Recorder::claim_more(std::uint32_t num_words) {
  const std::uint64_t end = position_ + num_words;
  claimed_ = (end / segment_words_ + 1) * segment_words_;
  std::atomic_ref(*shared_claimed_).store(claimed_, std::memory_order_relaxed);
  // A reader that sees one of the words written from here on also sees the claim.
  fence(std::memory_order_release);
  finish_streaming();  // The fence above does not order what stream() writes.
}

void Recorder::stream(std::uint64_t at, const void* from, std::size_t num_words) {
  if (num_words == 0) return;
  const auto copy = num_words < kLeastStreamed ? &copy_plain : &copy_streaming;
  const std::uint64_t begin = (position_ + at) & mask_;
  const std::size_t num_first = std::min<std::uint64_t>(num_words, mask_ + 1 - begin);
  const auto* bytes = static_cast<const std::byte*>(from);
  copy(ring_ + begin, bytes, num_first * sizeof(std::uint64_t));
  copy(ring_, bytes + num_first * sizeof(std::uint64_t),
       (num_words - num_first) * sizeof(std::uint64_t));
}

void Recorder::put_all(std::span<const std::uint64_t> words) {
  const auto num_words = static_cast<std::uint32_t>(words.size());
  claim(num_words);
  for (std::uint32_t i = 0; i < num_words; ++i) set(i, words[i]);
  publish(num_words);
}

void Recorder::enter_segments(std::uint64_t end) {
  for (; next_segment_ <= end; next_segment_ += segment_words_) {
    std::atomic_ref(segments_[next_segment_ / segment_words_ % kNumSegments])
        .store(end, std::memory_order_relaxed);
  }
}

Recorder::Draft Recorder::draft(EventKind kind, std::uint8_t flags, std::uint32_t number,
                                std::uint64_t num_words) {
  const auto limit = static_cast<std::uint32_t>(std::min<std::uint64_t>(num_words + 1, max_words_));
  claim(limit);
  return {*this, kind, flags, number, limit};
}

void Recorder::Draft::add_text(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
    add(word);
  }
}

void Recorder::Draft::end() {
  if (has_half_) add_half(0);
  if (num_words_ > limit_) {
    recorder_.put(EventKind::kLost, kNoFlags, static_cast<std::uint32_t>(kind_));
    return;
  }
  recorder_.set(0, EventHead(kind_, flags_, num_words_, number_).word());
  if (num_words_ > kLeastStreamed) finish_streaming();
  recorder_.publish(num_words_);
}

}  // namespace kvferry::recorder
