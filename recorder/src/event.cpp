// SPDX-License-Identifier: Apache-2.0
#include "kvferry/recorder/event.hpp"

#include "kvferry/base/outcome.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace kvferry::recorder {
namespace {

/// How a kind's words are written in text: its name, what its number is, and one character for each
/// of its first words: t a time, u a number, x a key or digest, p a pair. The last one is repeated,
/// if it is in brackets as one of several: "[xp]". T: the rest is text. An event may lack words
/// from a question mark on.
struct Shape {
  EventKind kind;
  const char* name;
  const char* number;
  std::string_view words;
  /// The largest value of its flags, of those that say which one of several.
  std::uint8_t most_flags = 0xFF;

  [[nodiscard]] constexpr std::size_t least_words() const {
    return std::min(words.find_first_of("?[T"), words.size());
  }
};

constexpr std::uint8_t kMostCopiedFlags = kIsLoad | static_cast<std::uint8_t>(Outcome::kCancelled);

constexpr std::array kShapes{
    Shape{EventKind::kRequest, "request", "request", "tpxT"},
    Shape{EventKind::kHints, "hints", "request", "x[pux]"},
    Shape{EventKind::kLookup, "lookup", "request", "tp"},
    Shape{EventKind::kAllocated, "allocated", "request", "tp[p]"},
    Shape{EventKind::kLocal, "local", "request", "p"},
    Shape{EventKind::kBlocksInvalid, "blocks invalid", "count", "[p]"},
    Shape{EventKind::kPreempted, "preempted", "request", ""},
    Shape{EventKind::kScheduled, "scheduled", "request", "p[p]"},
    Shape{EventKind::kState, "state", "request", "pp"},
    Shape{EventKind::kPlan, "plan", "plan", "t"},
    Shape{EventKind::kFold, "fold", "reports", "t"},
    Shape{EventKind::kFinished, "finished", "request", "tp"},
    Shape{EventKind::kReset, "reset", "", "t"},
    Shape{EventKind::kWeights, "weights", "", "tx"},
    Shape{EventKind::kResize, "resize", "chunks", ""},
    Shape{EventKind::kPool, "pool", "is known", ""},
    Shape{EventKind::kTakeKeyEvents, "take key events", "", ""},
    Shape{EventKind::kTended, "tended", "", "t"},
    Shape{EventKind::kReport, "report", "bytes", "[x]"},
    Shape{EventKind::kHashes, "hashes", "request", "p?p[x]"},
    Shape{EventKind::kTime, "time", "", "t"},
    Shape{EventKind::kPoolHolds, "pool holds", "", ""},
    Shape{EventKind::kPoolMarks, "pool marks", "count", "[x]"},
    Shape{EventKind::kPoolKey, "pool key", "block", "[x]"},
    Shape{EventKind::kPeers, "peers", "answer", "[p]",
          static_cast<std::uint8_t>(PeerAnswer::kWanted)},
    Shape{EventKind::kFound, "found", "request", "p?[p]"},
    Shape{EventKind::kStore, "store", "request", "up[xp]"},
    Shape{EventKind::kLoad, "load", "request", "u[p]"},
    Shape{EventKind::kCancels, "cancels", "", "[u]"},
    Shape{EventKind::kExpiries, "expiries", "", "[u]"},
    Shape{EventKind::kNotice, "notice", "", "u"},
    Shape{EventKind::kChunks, "chunks", "", "p"},
    Shape{EventKind::kPlanned, "planned", "plan", "p"},
    Shape{EventKind::kLoadBegun, "load begun", "request", "up"},
    Shape{EventKind::kSkipped, "skipped", "request", "[x]",
          static_cast<std::uint8_t>(Skip::kRingFull)},
    Shape{EventKind::kLeft, "left", "class", "[xp]", static_cast<std::uint8_t>(Leaving::kDamaged)},
    Shape{EventKind::kCame, "came", "class", "[xp]"},
    Shape{EventKind::kStoreEnded, "store ended", "", "up"},
    Shape{EventKind::kAborted, "aborted", "", "[u]"},
    Shape{EventKind::kLoadEnded, "load ended", "request", "u",
          static_cast<std::uint8_t>(LoadFate::kStale)},
    Shape{EventKind::kTold, "told", "request", ""},
    Shape{EventKind::kStale, "stale", "request", ""},
    Shape{EventKind::kThrew, "threw", "class", "T"},
    Shape{EventKind::kBroken, "broken invariant", "", "T"},
    Shape{EventKind::kLost, "lost", "kind", ""},
    Shape{EventKind::kMissing, "missing", "request", "xxxp"},
    Shape{EventKind::kBooks, "books", "bytes", "T"},
    Shape{EventKind::kBound, "bound", "plan", "t"},
    Shape{EventKind::kSaved, "saved", "", "t"},
    Shape{EventKind::kGathered, "gathered", "", "up"},
    Shape{EventKind::kCopied, "copied", "damaged", "tuuuu[p]", kMostCopiedFlags},
    Shape{EventKind::kReported, "reported", "bytes", "t"},
    Shape{EventKind::kAsleep, "asleep", "is asleep", "t"},
};

/// Null for a kind that this version does not know.
const Shape* shape_of(EventKind kind) {
  static constexpr auto kByKind = [] {
    std::array<const Shape*, kMaxKinds> by_kind{};
    for (const Shape& one : kShapes) by_kind[static_cast<std::size_t>(one.kind)] = &one;
    return by_kind;
  }();
  const auto at = static_cast<std::size_t>(kind);
  return at < kByKind.size() ? kByKind[at] : nullptr;
}

std::string hexadecimal(std::uint64_t word) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(word));
  return text.data();
}

std::string text_of(char shape, std::uint64_t word) {
  switch (shape) {
    case 'x':
      return hexadecimal(word);
    case 'p':
      return std::to_string(static_cast<std::uint32_t>(word)) + "|" + std::to_string(word >> 32U);
    case 't':
      return "at " + std::to_string(word);
    default:
      return std::to_string(word);
  }
}

std::string printable(std::span<const std::uint64_t> words) {
  std::string text(words.size_bytes(), '\0');
  if (!words.empty()) std::memcpy(text.data(), words.data(), words.size_bytes());
  text.resize(std::min({text.find('\0'), text.size(), kMaxText}));
  for (char& one : text) {
    // A text that was cut may end within a character of several bytes.
    if (static_cast<signed char>(one) < 0x20 || one == 0x7f) one = '?';
  }
  return "\"" + text + "\"";
}

/// Lines of one event are no longer than a few of these.
constexpr std::size_t kMostShownWords = 24;

}  // namespace

bool has_time(EventKind kind) {
  const Shape* shape = shape_of(kind);
  return shape != nullptr && shape->words.starts_with('t');
}

std::string why_malformed(const Event& event) {
  const Shape* shape = shape_of(event.kind());
  if (shape == nullptr) return "";
  if (event.words.size() < shape->least_words()) {
    return "\"" + std::string(shape->name) + "\" has " + std::to_string(event.words.size()) +
           " words after its head, and needs " + std::to_string(shape->least_words());
  }
  if (event.head.flags() > shape->most_flags) {
    return "\"" + std::string(shape->name) + "\" has flags " + std::to_string(event.head.flags()) +
           "; the largest is " + std::to_string(shape->most_flags);
  }
  return "";
}

std::string name_of(EventKind kind) {
  const Shape* shape = shape_of(kind);
  return shape == nullptr ? "kind " + std::to_string(static_cast<int>(kind)) : shape->name;
}

std::string to_text(const Event& event) {
  const Shape* shape = shape_of(event.kind());
  std::string text = name_of(event.kind());
  const std::string number = std::to_string(event.number());
  if (shape == nullptr || shape->number[0] != '\0') {
    text += " (" + (shape == nullptr ? "number" : std::string(shape->number)) + " " + number + ")";
  }
  if (event.head.flags() != 0) text += " flags " + std::to_string(event.head.flags());
  const std::string_view words = shape == nullptr ? "[x]" : shape->words;
  std::size_t at_shape = 0;
  std::size_t repeat = std::string_view::npos;
  for (std::size_t i = 0; i < event.words.size(); ++i) {
    if (i == kMostShownWords)
      return text + " and " + std::to_string(event.words.size() - i) + " more";
    if (at_shape < words.size() && words[at_shape] == '?') ++at_shape;
    if (at_shape < words.size() && words[at_shape] == '[') repeat = ++at_shape;
    if (at_shape < words.size() && words[at_shape] == ']') at_shape = repeat;
    if (at_shape < words.size() && words[at_shape] == 'T') {
      return text + " " + printable(event.words.subspan(i));
    }
    text += " " + text_of(at_shape < words.size() ? words[at_shape++] : 'x', event.words[i]);
  }
  return text;
}

}  // namespace kvferry::recorder
