// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::bench::trace {

/// Reads JSON from front to back without building anything, for traces of a hundred megabytes.
/// Another value can follow a value (JSON lines). Of skipped values only brackets and quotation
/// marks are checked. All functions except at_end() throw a ConfigError that names file and line,
/// what was expected, and what was found.
class JsonCursor {
 public:
  /// `name` is the name of the file, for errors; `text` outlives the cursor.
  JsonCursor(std::string_view text, std::string name) : text_(text), name_(std::move(name)) {}

  /// Whether only blanks are left.
  [[nodiscard]] bool at_end();

  /// Reads an object. Calls `member(key)` for each member; `member` reads or skips the value.
  /// Escapes in a key are not resolved.
  template <class Member>
  void members(const Member& member) {
    take('{', "an object");
    for (bool more = !took('}'); more; more = next_or('}')) {
      const std::string_view key = string("a key");
      take(':', "':'");
      member(key);
    }
  }
  /// Reads an array. Calls `element()` for each element; `element` reads or skips it.
  template <class Element>
  void elements(const char* what, const Element& element) {
    take('[', what);
    for (bool more = !took(']'); more; more = next_or(']')) element();
  }
  [[nodiscard]] std::uint64_t whole_number(const char* what);
  [[nodiscard]] double number(const char* what);
  /// Reads a text; escapes are not resolved.
  [[nodiscard]] std::string_view string(const char* what);
  /// Skips a value of any kind.
  void skip();

  /// Throws the error that `what` was expected, and what was found instead.
  [[noreturn]] void fail_expected(std::string_view what);
  /// Throws the error `what` about the value that was read last.
  [[noreturn]] void fail(std::string_view what) const;

 private:
  void skip_blanks();
  [[nodiscard]] bool took(char what);
  void take(char what, std::string_view expected);
  /// True after a comma, false after `close`.
  [[nodiscard]] bool next_or(char close);

  std::string_view text_;
  std::string name_;
  std::size_t at_ = 0;
  std::size_t last_ = 0;  ///< After the last token; an error names its line.
};

}  // namespace kvferry::bench::trace
