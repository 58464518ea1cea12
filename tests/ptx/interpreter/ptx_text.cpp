// SPDX-License-Identifier: Apache-2.0
#include "interpreter/ptx_text.hpp"

#include "interpreter/fault.hpp"

#include <algorithm>
#include <cctype>

namespace kvferry::ptx {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

/// Comments become spaces, so that places and lines stay.
std::string without_comments(std::string_view module) {
  std::string text(module);
  for (std::size_t at = text.find("//"); at != std::string::npos; at = text.find("//", at)) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::fill(text.begin() + static_cast<std::ptrdiff_t>(at),
              text.begin() + static_cast<std::ptrdiff_t>(end), ' ');
  }
  return text;
}

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '$' || c == '%';
  });
}

/// Reads a body from its opening brace on.
class BodyReader {
 public:
  BodyReader(std::string_view text, std::size_t open)
      : text_(text),
        at_(open),
        line_(1 + static_cast<int>(std::count(
                      text.begin(), text.begin() + static_cast<std::ptrdiff_t>(open), '\n'))) {}

  std::vector<Statement> read() {
    int depth = 0;
    do {
      skip_space();
      if (at_ >= text_.size()) throw UnknownPtx(line_, "the module ends within a kernel");
      depth += read_one();
    } while (depth > 0);
    return std::move(statements_);
  }
  [[nodiscard]] std::size_t at() const { return at_; }

 private:
  /// By how much the depth of braces changes.
  int read_one() {
    if (text_[at_] == '{' || text_[at_] == '}') {
      const bool opens = text_[at_] == '{';
      statements_.push_back({opens ? Statement::Kind::kOpen : Statement::Kind::kClose, "", line_});
      ++at_;
      return opens ? 1 : -1;
    }
    const std::size_t end = text_.find_first_of(";:", at_);
    if (end == std::string_view::npos) throw UnknownPtx(line_, "a statement without an end");
    if (text_[end] == ':' && is_name(trimmed(text_.substr(at_, end - at_)))) {
      take(Statement::Kind::kLabel, end);
    } else {
      take(text_[at_] == '.' ? Statement::Kind::kDirective : Statement::Kind::kInstruction,
           text_.find(';', at_));
    }
    return 0;
  }
  void take(Statement::Kind kind, std::size_t end) {
    if (end == std::string_view::npos) throw UnknownPtx(line_, "a statement without a semicolon");
    const std::string_view text = text_.substr(at_, end - at_);
    statements_.push_back({kind, std::string(trimmed(text)), line_});
    line_ += static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    at_ = end + 1;
  }
  void skip_space() {
    for (; at_ < text_.size() && kSpace.find(text_[at_]) != std::string_view::npos; ++at_) {
      line_ += text_[at_] == '\n' ? 1 : 0;
    }
  }

  std::string_view text_;
  std::size_t at_;
  int line_;
  std::vector<Statement> statements_;
};

}  // namespace

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::vector<EntryText> entries_of(std::string_view module) {
  constexpr std::string_view kEntry = ".entry ";
  const std::string text = without_comments(module);
  std::vector<EntryText> entries;
  for (std::size_t at = text.find(kEntry); at != std::string::npos; at = text.find(kEntry, at)) {
    const std::size_t name = at + kEntry.size();
    const std::size_t parameters = text.find('(', name);
    const std::size_t body = text.find('{', name);
    if (body == std::string::npos || parameters > body) {
      throw UnknownPtx(1, "an .entry without parameters or body");
    }
    BodyReader reader(text, body);
    EntryText entry{std::string(trimmed(std::string_view(text).substr(name, parameters - name))),
                    text.substr(parameters, body - parameters), reader.read(), at, reader.at()};
    at = entry.end;
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace kvferry::ptx
