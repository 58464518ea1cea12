// SPDX-License-Identifier: Apache-2.0
#include "trace/json_cursor.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace kvferry::bench::trace {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::string_view kEndOfWord = ",:]} \t\r\n";
constexpr std::size_t kMostQuoted = 24;

}  // namespace

void JsonCursor::skip_blanks() {
  while (at_ < text_.size() && kBlanks.find(text_[at_]) != std::string_view::npos) ++at_;
}

bool JsonCursor::at_end() {
  skip_blanks();
  return at_ == text_.size();
}

bool JsonCursor::took(char what) {
  skip_blanks();
  if (at_ == text_.size() || text_[at_] != what) return false;
  last_ = ++at_;
  return true;
}

void JsonCursor::take(char what, std::string_view expected) {
  if (!took(what)) fail_expected(expected);
}

bool JsonCursor::next_or(char close) {
  if (took(',')) return true;
  if (!took(close)) fail_expected(fmt::format("',' or '{}'", close));
  return false;
}

std::uint64_t JsonCursor::whole_number(const char* what) {
  skip_blanks();
  std::uint64_t number = 0;
  const char* const begin = text_.data() + at_;
  const char* const end = text_.data() + text_.size();
  const auto [next, error] = std::from_chars(begin, end, number);
  const bool whole = next == end || kEndOfWord.find(*next) != std::string_view::npos;
  if (error != std::errc() || !whole) fail_expected(what);
  last_ = at_ += static_cast<std::size_t>(next - begin);
  return number;
}

double JsonCursor::number(const char* what) {
  skip_blanks();
  double number = 0;
  const char* const begin = text_.data() + at_;
  const auto [next, error] = std::from_chars(begin, text_.data() + text_.size(), number);
  if (error != std::errc()) fail_expected(what);
  last_ = at_ += static_cast<std::size_t>(next - begin);
  return number;
}

std::string_view JsonCursor::string(const char* what) {
  skip_blanks();
  if (at_ == text_.size() || text_[at_] != '"') fail_expected(what);
  const std::size_t begin = at_ + 1;
  std::size_t end = text_.find_first_of("\"\\", begin);
  while (end < text_.size() && text_[end] == '\\') end = text_.find_first_of("\"\\", end + 2);
  if (end >= text_.size()) fail_expected(fmt::format("{} that ends", what));
  last_ = at_ = end + 1;
  return text_.substr(begin, end - begin);
}

void JsonCursor::skip() {
  std::size_t depth = 0;
  do {
    skip_blanks();
    if (at_ == text_.size()) fail_expected("a value");
    const char next = text_[at_];
    if (next == '"') {
      static_cast<void>(string("a string"));
    } else if (next == '{' || next == '[') {
      ++depth;
      last_ = ++at_;
    } else if (next == '}' || next == ']') {
      if (depth-- == 0) fail_expected("a value");
      last_ = ++at_;
    } else if (next == ',' || next == ':') {
      if (depth == 0) fail_expected("a value");
      last_ = ++at_;
    } else {
      last_ = at_ = std::min(text_.find_first_of(kEndOfWord, at_), text_.size());
    }
  } while (depth > 0);
}

void JsonCursor::fail_expected(std::string_view what) {
  skip_blanks();
  const std::string_view rest = text_.substr(at_, kMostQuoted);
  fail(fmt::format(
      "expected {}, found {}", what,
      rest.empty() ? "the end of the file" : fmt::format("'{}'", rest.substr(0, rest.find('\n')))));
}

void JsonCursor::fail(std::string_view what) const {
  const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<long>(last_), '\n');
  throw ConfigError(fmt::format("{}:{}: {}", name_, line, what));
}

}  // namespace kvferry::bench::trace
