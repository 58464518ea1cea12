// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/own_descriptor.hpp"
#include "kvferry/recorder/event.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace kvferry::recorder {

/// What a recording says about the process that makes it.
struct RecordedBy {
  std::string version;             ///< Of kvferry; at most 31 bytes count.
  std::uint32_t wire_version = 0;  ///< connector::kWireVersion.
  /// How the recorded engine was configured (connector::config_text()).
  std::string config;
};

/// Records what one side of an engine does, as events in a ring: the newest events replace the
/// oldest. The ring lies in a file in shared memory, so it can be read while it is written, and
/// after its process was killed at any instruction: an event counts after it was written whole.
///
/// Writing never blocks, allocates nothing, calls nothing. One thread at a time writes. A forked
/// child must not write to a recorder with a file.
class Recorder {
 public:
  /// Bytes of a ring: a power of two, between these.
  static constexpr std::uint64_t kMinRingBytes = std::uint64_t{1} << 16U;
  static constexpr std::uint64_t kMaxRingBytes = std::uint64_t{1} << 36U;
  static constexpr std::uint64_t kDefaultRingBytes = std::uint64_t{1} << 26U;

  /// Records into a new file, with mode 0600; nothing may have this path. The file keeps existing
  /// when the recorder ends. All of its memory is taken now, so that a full /dev/shm is an error
  /// here and no signal later. Throws ConfigError for other sizes, for a path that is in use and
  /// for a configuration above 16 MiB, and ResourceError if the file cannot be made.
  Recorder(const std::string& path, std::uint64_t ring_bytes, const RecordedBy& by);
  /// The same in memory that this process shares with its forked children. The memory is taken when
  /// it is first written.
  Recorder(std::uint64_t ring_bytes, const RecordedBy& by);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Records an event of these words.
  template <class... Words>
  void put(EventKind kind, std::uint8_t flags, std::uint32_t number, Words... words) {
    constexpr std::uint32_t kNumWords = 1 + sizeof...(Words);
    const std::uint64_t head = EventHead(kind, flags, kNumWords, number).word();
    // Within a segment, nothing is to be claimed, and the ring does not end.
    if (position_ + kNumWords < next_segment_) [[likely]] {
      std::uint64_t* to = ring_ + (position_ & mask_);
      const auto store = [&to](std::uint64_t word) {
        std::atomic_ref(*to++).store(word, std::memory_order_relaxed);
      };
      store(head);
      (store(words), ...);
      position_ += kNumWords;
      std::atomic_ref(*published_).store(position_, std::memory_order_release);
      return;
    }
    const std::uint64_t all[]{head, std::uint64_t{words}...};
    put_all(all);
  }

  /// Most words that an event can have here, its head included.
  [[nodiscard]] std::uint32_t max_words() const { return max_words_; }

  /// An event of a length that is not known before. Nothing else is recorded while it lives; it
  /// counts from its end() on. If it has more than its limit of words, a kLost is recorded instead.
  class Draft {
   public:
    void add(std::uint64_t word) {
      if (num_words_ < limit_) recorder_.set(num_words_, word);
      ++num_words_;
    }
    /// Adds `word_of(i)` for each i below `count`. For long lists this takes much less time than
    /// add().
    template <class WordOf>
    void add_words(std::size_t count, const WordOf& word_of) {
      recorder_.set_all(num_words_, std::min(count, room()), word_of);
      num_words_ += static_cast<std::uint32_t>(count);
    }
    void add_text(std::string_view text);
    /// 32-bit values, two in a word.
    void add_half(std::uint32_t value) {
      if (!has_half_) half_ = value;
      if (has_half_) add(halves(half_, value));
      has_half_ = !has_half_;
    }
    /// Adds these 32-bit values, or ids that are such values, as add_half().
    template <class Half>
    void add_halves(std::span<const Half> halves) {
      static_assert(sizeof(Half) == sizeof half_ && std::is_trivially_copyable_v<Half>);
      static_assert(std::endian::native == std::endian::little);  // So two of them are a word.
      const auto half_of = [](const Half& one) { return std::bit_cast<std::uint32_t>(one); };
      if (has_half_ && !halves.empty()) {
        add_half(half_of(halves.front()));
        halves = halves.subspan(1);
      }
      const std::size_t num_pairs = halves.size() / 2;
      recorder_.stream(num_words_, halves.data(), std::min(num_pairs, room()));
      num_words_ += static_cast<std::uint32_t>(num_pairs);
      if (halves.size() % 2 != 0) add_half(half_of(halves.back()));
    }
    void end();

   private:
    friend class Recorder;
    Draft(Recorder& recorder, EventKind kind, std::uint8_t flags, std::uint32_t number,
          std::uint32_t limit)
        : recorder_(recorder), kind_(kind), flags_(flags), number_(number), limit_(limit) {}

    /// Words that it can still take.
    [[nodiscard]] std::size_t room() const { return limit_ - std::min(num_words_, limit_); }

    Recorder& recorder_;
    EventKind kind_;
    std::uint8_t flags_;
    std::uint32_t number_;
    std::uint32_t limit_;
    std::uint32_t num_words_ = 1;
    std::uint32_t half_ = 0;
    bool has_half_ = false;
  };
  /// `num_words`: most that it will have, without its head. An event of more than max_words(), head
  /// included, is replaced by kLost.
  [[nodiscard]] Draft draft(EventKind kind, std::uint8_t flags, std::uint32_t number,
                            std::uint64_t num_words);

  /// Words recorded so far.
  [[nodiscard]] std::uint64_t position() const { return position_; }
  /// The whole file, as Recording reads it.
  [[nodiscard]] std::span<const std::byte> bytes() const { return {base_, num_bytes_}; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  /// Words that set_all() computes at a time: 4 KiB, a small part of a processor's first cache.
  static constexpr std::size_t kStreamedWords = 512;
  /// Fewer words than these do not bypass the caches, because the fence behind them would take
  /// longer than the stores.
  static constexpr std::size_t kLeastStreamed = 64;

  void lay_out(std::uint64_t ring_bytes, const RecordedBy& by);
  void put_all(std::span<const std::uint64_t> words);
  /// The next `num_words` words are written next. They replace what lies there. The segment that
  /// begins at their end is claimed as well, because put() writes into it without a claim.
  void claim(std::uint32_t num_words) {
    if (position_ + num_words >= claimed_) [[unlikely]]
      claim_more(num_words);
  }
  void claim_more(std::uint32_t num_words);
  /// An event that ends at `end` enters one or more segments, or ends where one begins.
  void enter_segments(std::uint64_t end);
  // A reader can read the word meanwhile, and finds out afterwards that it was too late.
  void set(std::uint32_t at, std::uint64_t word) {
    std::atomic_ref(ring_[(position_ + at) & mask_]).store(word, std::memory_order_relaxed);
  }
  /// Long lists take less time this way: the words are computed in a buffer, without the atomic
  /// stores that a compiler cannot combine, and bypass the caches, where the engine's data stays.
  template <class WordOf>
  void set_all(std::uint32_t at, std::size_t count, const WordOf& word_of) {
    std::array<std::uint64_t, kStreamedWords> words;
    for (std::size_t first = 0; first < count; first += words.size()) {
      const std::size_t num_words = std::min(count - first, words.size());
      for (std::size_t i = 0; i < num_words; ++i) words[i] = word_of(first + i);
      stream(at + first, words.data(), num_words);
    }
  }
  /// The words are at `from`, which need not be aligned.
  void stream(std::uint64_t at, const void* from, std::size_t num_words);
  void publish(std::uint32_t num_words) {
    position_ += num_words;
    if (position_ >= next_segment_) [[unlikely]]
      enter_segments(position_);
    std::atomic_ref(*published_).store(position_, std::memory_order_release);
  }

  std::uint64_t position_ = 0;
  /// All words before this one may be overwritten by now. It is never less than next_segment_.
  std::uint64_t claimed_ = 0;
  std::uint64_t next_segment_ = 0;  ///< The first one that begins after position_.
  std::uint64_t* ring_ = nullptr;
  std::uint64_t mask_ = 0;
  std::uint64_t* published_ = nullptr;
  std::uint64_t* shared_claimed_ = nullptr;
  std::uint64_t* segments_ = nullptr;
  std::uint64_t segment_words_ = 0;
  std::uint32_t max_words_ = 0;
  std::byte* base_ = nullptr;
  std::size_t num_bytes_ = 0;
  OwnDescriptor file_;  ///< Locked (flock) as long as this object lives; none in a forked child.
  std::string path_;
};

}  // namespace kvferry::recorder
