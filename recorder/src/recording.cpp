// SPDX-License-Identifier: Apache-2.0
#include "kvferry/recorder/recording.hpp"

#include "kvferry/base/own_descriptor.hpp"

#include "fence.hpp"
#include "layout.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace kvferry::recorder {
namespace {

/// No recorder gets so far: it would write for centuries.
constexpr std::uint64_t kMostWords = std::uint64_t{1} << 62U;
/// How often a reading is tried again that a writer has overtaken.
constexpr int kMostTries = 16;

[[noreturn]] void refuse(const std::string& what) { throw RecordingError("a recording " + what); }

/// Does something with a file, and names it in a refusal.
template <class Do>
auto with_name(const std::string& path, Do act) {
  try {
    return act();
  } catch (const RecordingError& error) {
    throw RecordingError(std::string(error.what()) + " (" + path + ")");
  }
}

/// What to do about a file that lacks something.
constexpr const char* kGetItAnew =
    ": copy it again from where it was made, or let `kvferry dump` write it anew";

template <std::size_t kSize>
std::string text_of(const std::array<char, kSize>& text) {
  return {text.begin(), std::find(text.begin(), text.end(), '\0')};
}

FileHead checked(const FileHead& head, std::uint64_t num_bytes) {
  if (head.magic != kMagic)
    refuse(
        "begins with other bytes than expected: it is another file, or was never finished: name a "
        "file that `kvferry dump` wrote, or the recording of an engine");
  if (head.file_version != kFileVersion || head.head_bytes != sizeof(FileHead)) {
    refuse("has version " + std::to_string(head.file_version) + "; this kvferry reads version " +
           std::to_string(kFileVersion) + ": use the kvferry that made it (" +
           text_of(head.version) + ")");
  }
  const bool fits =
      std::has_single_bit(head.ring_bytes) && head.ring_bytes >= kNumSegments * kWord &&
      head.ring_bytes < std::uint64_t{1} << 40U && head.config_bytes <= kMaxConfigBytes;
  if (!fits || places_of(head.config_bytes, head.ring_bytes).end != head.file_bytes) {
    refuse("is damaged: its sizes contradict each other" + std::string(kGetItAnew));
  }
  if (num_bytes < head.file_bytes) {
    refuse("was cut: it has " + std::to_string(num_bytes) + " of " +
           std::to_string(head.file_bytes) + " bytes" + kGetItAnew);
  }
  return head;
}

/// Where the bytes of a recording come from.
struct Source {
  /// The file's head, of which the cursors can change meanwhile.
  const FileHead* head;
  Places places;
  std::uint64_t ring_words;
  /// Copies words at a place of the file.
  virtual void copy(std::uint64_t place, std::span<std::uint64_t> to) const = 0;

  explicit Source(const FileHead* of)
      : head(of),
        places(places_of(of->config_bytes, of->ring_bytes)),
        ring_words(of->ring_bytes / kWord) {}
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  static std::uint64_t cursor(const std::uint64_t& of) {
    // A reader never writes; atomic_ref has no const form in C++20.
    return std::atomic_ref(const_cast<std::uint64_t&>(of)).load(std::memory_order_acquire);
  }
  void copy_ring(std::uint64_t from, std::span<std::uint64_t> to) const {
    const std::uint64_t at = from % ring_words;
    const std::size_t first = std::min<std::uint64_t>(to.size(), ring_words - at);
    copy(places.ring + at * kWord, to.first(first));
    if (first < to.size()) copy(places.ring, to.subspan(first));
  }
};

struct ImageSource final : Source {
  std::span<const std::byte> file;
  ImageSource(const FileHead* of, std::span<const std::byte> image) : Source(of), file(image) {}
  void copy(std::uint64_t place, std::span<std::uint64_t> to) const override {
    if (!to.empty()) std::memcpy(to.data(), file.data() + place, to.size_bytes());
  }
};

void read_all(int file, std::uint64_t place, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t count = ::pread(file, to.data(), to.size(), static_cast<off_t>(place));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) refuse("was cut while it was read");
    to = to.subspan(static_cast<std::size_t>(count));
    place += static_cast<std::uint64_t>(count);
  }
}

struct FileSource final : Source {
  int file;
  std::uint64_t begin;
  FileSource(const FileHead* of, int descriptor, std::uint64_t part)
      : Source(of), file(descriptor), begin(part) {}
  void copy(std::uint64_t place, std::span<std::uint64_t> to) const override {
    read_all(file, begin + place, std::as_writable_bytes(to));
  }
};

/// The first event that is left; nothing if the writer is at work there.
std::optional<std::uint64_t> first_left(const Source& of, std::uint64_t published) {
  const std::uint64_t claimed = Source::cursor(of.head->claimed);
  if (claimed < published || claimed > kMostWords) {
    refuse("is damaged: its cursors contradict each other" + std::string(kGetItAnew));
  }
  if (claimed - published > of.ring_words) return std::nullopt;
  const std::uint64_t segment_words = of.ring_words / kNumSegments;
  std::uint64_t segment = 0;
  if (claimed > of.ring_words) {
    segment = (claimed - of.ring_words + segment_words - 1) / segment_words;
  }
  while (segment * segment_words + of.ring_words <= published) ++segment;
  if (segment == 0) return 0;
  for (; segment * segment_words <= published; ++segment) {
    std::uint64_t first = 0;
    of.copy(of.places.segments + segment % kNumSegments * kWord, {&first, 1});
    if (first < segment * segment_words) return std::nullopt;
    if (first <= published) return first;
    // The writer has entered the segment again, and may have been killed before it published that.
  }
  return std::nullopt;
}

void check_events(std::uint64_t begin, std::span<const std::uint64_t> words) {
  for (std::size_t at = 0; at < words.size();) {
    const std::uint32_t num_words = EventHead(words[at]).num_words();
    if (num_words == 0 || num_words > words.size() - at) {
      refuse("is damaged: the event at " + std::to_string(begin + at) + " has " +
             std::to_string(num_words) + " words of the " + std::to_string(words.size() - at) +
             " that follow" + kGetItAnew);
    }
    const Event event{begin + at, EventHead(words[at]), words.subspan(at + 1, num_words - 1)};
    if (const std::string why = why_malformed(event); !why.empty()) {
      refuse("is damaged: the event at " + std::to_string(begin + at) + ", " + why + kGetItAnew);
    }
    at += num_words;
  }
}

Recording read_from(const Source& source, const RecordingHead& head, std::uint64_t from) {
  for (int i = 0; i < kMostTries; ++i) {
    const std::uint64_t published = Source::cursor(source.head->published);
    if (from > published) {
      refuse("has " + std::to_string(published) + " words, and is to be read from word " +
             std::to_string(from) + " on: it is another one than before");
    }
    std::optional<std::uint64_t> first = first_left(source, published);
    if (!first) continue;
    const std::uint64_t begin = std::max(*first, from);
    std::vector<std::uint64_t> words(published - begin);
    source.copy_ring(begin, words);
    fence(std::memory_order_acquire);
    // What the writer has begun to overwrite meanwhile is dropped.
    first = first_left(source, Source::cursor(source.head->published));
    if (!first || *first > published) continue;
    const std::uint64_t valid = std::max(*first, begin);
    words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(valid - begin));
    return {head, valid, std::move(words)};
  }
  refuse(
      "is written faster than it can be read, or is damaged: its cursors and its table of segments "
      "contradict each other");
}

RecordingHead head_of(const Source& source) {
  const FileHead& head = *source.head;
  std::vector<std::uint64_t> config((head.config_bytes + kWord - 1) / kWord);
  source.copy(source.places.config, config);
  return {text_of(head.version),
          head.wire_version,
          text_of(head.boot_id),
          head.pid,
          std::chrono::nanoseconds(head.wall_ns),
          std::chrono::nanoseconds(head.steady_ns),
          head.ring_bytes,
          {reinterpret_cast<const char*>(config.data()), head.config_bytes}};
}

}  // namespace

Recording::Recording(RecordingHead head, std::uint64_t begin, std::vector<std::uint64_t> words)
    : head_(std::move(head)), begin_(begin), words_(std::move(words)) {
  check_events(begin_, words_);
}

Recording Recording::from_bytes(std::span<const std::byte> file, std::uint64_t from) {
  if (file.size() < sizeof(FileHead)) {
    refuse("was cut: it has " + std::to_string(file.size()) + " bytes, less than its head" +
           kGetItAnew);
  }
  FileHead head{};
  std::memcpy(&head, file.data(), sizeof head);
  head = checked(head, file.size());
  const ImageSource source(&head, file);
  return read_from(source, head_of(source), from);
}

Recording Recording::from_file(const std::string& path) { return RecordingFile(path).read(); }

bool ends_with_error(const Recording& recording) {
  bool is_error = false;
  for (const Event& event : recording) {
    if (is_engine_call(event.kind())) is_error = false;
    if (event.kind() == EventKind::kThrew || event.kind() == EventKind::kBroken) is_error = true;
  }
  return is_error;
}

/// The file's head is mapped, because a writer changes its cursors; the rest is read.
class RecordingFile::Mapped {
 public:
  Mapped(const std::string& path, std::size_t part)
      : path_(path), file_(OwnDescriptor::open(path.c_str(), O_RDONLY | O_NONBLOCK)) {
    struct ::stat info {};
    if (!file_ || ::fstat(file_.get(), &info) != 0) {
      const int error = errno;
      throw ResourceError("cannot read the recording " + path + ": " + std::strerror(error));
    }
    num_bytes_ = static_cast<std::uint64_t>(std::max<off_t>(info.st_size, 0));
    with_name(path, [&] {
      if (!S_ISREG(info.st_mode)) {
        refuse("is a regular file, and this is none: name a file that `kvferry dump` wrote");
      }
      for (; part > 0; --part) {
        begin_ = next_part(begin_, head_at_begin());
        if (begin_ >= num_bytes_) refuse("has not as many parts as expected");
      }
      static_cast<void>(head_at_begin());
    });
    memory_ = ::mmap(nullptr, sizeof(FileHead), PROT_READ, MAP_SHARED, file_.get(),
                     static_cast<off_t>(begin_));
    if (memory_ == MAP_FAILED) {
      const int error = errno;
      throw ResourceError("cannot map the recording " + path + ": " + std::strerror(error));
    }
  }
  ~Mapped() { ::munmap(memory_, sizeof(FileHead)); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  [[nodiscard]] const FileHead& head() const { return *static_cast<const FileHead*>(memory_); }
  [[nodiscard]] FileSource source() const { return {&head(), file_.get(), begin_}; }
  [[nodiscard]] bool has_next() const { return next_part(begin_, head()) < num_bytes_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[nodiscard]] FileHead head_at_begin() const {
    const std::uint64_t left = num_bytes_ - begin_;
    if (left < sizeof(FileHead)) {
      refuse("was cut: it has " + std::to_string(left) + " bytes, less than its head" + kGetItAnew);
    }
    FileHead head{};
    read_all(file_.get(), begin_, std::as_writable_bytes(std::span(&head, 1)));
    return checked(head, left);
  }

  std::string path_;
  OwnDescriptor file_;
  std::uint64_t num_bytes_ = 0;
  std::uint64_t begin_ = 0;  ///< Where the part begins.
  void* memory_ = nullptr;
};

RecordingFile::RecordingFile(const std::string& path, std::size_t part)
    : mapped_(std::make_unique<Mapped>(path, part)),
      head_(with_name(path, [this] { return head_of(mapped_->source()); })) {}
RecordingFile::~RecordingFile() = default;

bool RecordingFile::has_next() const { return mapped_->has_next(); }

Recording RecordingFile::read(std::uint64_t from) const {
  return with_name(mapped_->path(), [&] { return read_from(mapped_->source(), head_, from); });
}

}  // namespace kvferry::recorder
