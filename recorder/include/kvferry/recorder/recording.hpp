// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/recorder/event.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvferry::recorder {

/// A file that is no recording, or is damaged, or was made by another version.
class RecordingError : public Error {
 public:
  using Error::Error;
};

/// What a recording says about its making.
struct RecordingHead {
  std::string version;  ///< Of kvferry.
  std::uint32_t wire_version = 0;
  std::string boot_id;
  std::int64_t pid = 0;
  std::chrono::nanoseconds wall{0};    ///< Since 1970, when the recording began.
  std::chrono::nanoseconds steady{0};  ///< By the steady clock, at the same moment.
  std::uint64_t ring_bytes = 0;
  std::string config;
};

/// Events that were read from a recording: a copy, which nothing overwrites.
class Recording {
 public:
  Recording(RecordingHead head, std::uint64_t begin, std::vector<std::uint64_t> words);
  /// The events that are left in the image of a whole file, from position `from` on (as
  /// RecordingFile::read()). Throws RecordingError.
  static Recording from_bytes(std::span<const std::byte> file, std::uint64_t from = 0);
  /// The same for a file. Throws RecordingError, and ResourceError if it cannot be read.
  static Recording from_file(const std::string& path);

  [[nodiscard]] const RecordingHead& head() const { return head_; }
  /// The position of the first event; not 0: what came before it was overwritten.
  [[nodiscard]] std::uint64_t begin_position() const { return begin_; }
  [[nodiscard]] std::uint64_t end_position() const { return begin_ + words_.size(); }
  [[nodiscard]] bool is_whole() const { return begin_ == 0; }

  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Event;
    using difference_type = std::ptrdiff_t;
    using pointer = const Event*;
    using reference = Event;

    Iterator() = default;
    Event operator*() const {
      const EventHead head((*words_)[at_]);
      return {begin_ + at_, head, std::span(*words_).subspan(at_ + 1, head.num_words() - 1)};
    }
    Iterator& operator++() {
      at_ += EventHead((*words_)[at_]).num_words();
      return *this;
    }
    Iterator operator++(int) {
      Iterator old = *this;
      ++*this;
      return old;
    }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    friend class Recording;
    Iterator(const std::vector<std::uint64_t>& words, std::uint64_t begin, std::size_t at)
        : words_(&words), begin_(begin), at_(at) {}

    const std::vector<std::uint64_t>* words_ = nullptr;
    std::uint64_t begin_ = 0;
    std::size_t at_ = 0;
  };
  [[nodiscard]] Iterator begin() const { return {words_, begin_, 0}; }
  [[nodiscard]] Iterator end() const { return {words_, begin_, words_.size()}; }
  /// The event at this position, which must be that of an event.
  [[nodiscard]] Event at(std::uint64_t position) const {
    return *Iterator(words_, begin_, position - begin_);
  }

 private:
  RecordingHead head_;
  std::uint64_t begin_;
  std::vector<std::uint64_t> words_;
};

/// Whether the last call that was recorded ended in an error: it threw, or found a broken
/// invariant.
[[nodiscard]] bool ends_with_error(const Recording& recording);

/// An open file of a recording, which may be written meanwhile. One thread at a time. A file that
/// was saved can have several recordings: an engine's is part 0, those of its ranks follow.
class RecordingFile {
 public:
  /// Throws RecordingError, and ResourceError if the file cannot be read.
  explicit RecordingFile(const std::string& path, std::size_t part = 0);
  ~RecordingFile();
  RecordingFile(const RecordingFile&) = delete;
  RecordingFile& operator=(const RecordingFile&) = delete;

  [[nodiscard]] const RecordingHead& head() const { return head_; }
  /// Whether the file has a part after this one.
  [[nodiscard]] bool has_next() const;
  /// The events from position `from` on, which was the end of an earlier reading (0: the first
  /// one). If the result begins after `from`, the writer has overtaken the reader. Throws
  /// RecordingError.
  [[nodiscard]] Recording read(std::uint64_t from = 0) const;

 private:
  class Mapped;
  std::unique_ptr<Mapped> mapped_;
  RecordingHead head_;
};

}  // namespace kvferry::recorder
