// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::bench::trace {

/// Reads JSON from front to back without building anything: what a trace of a hundred megabytes
/// needs. Text behind a value may be another value (JSON lines). What is skipped is not checked
/// beyond its brackets and quotation marks. All but at_end() throw ConfigError that names file and
/// line, what was expected and what stands there.
class JsonCursor {
 public:
  /// `name` is the file's, for errors; `text` outlives the cursor.
  JsonCursor(std::string_view text, std::string name) : text_(text), name_(std::move(name)) {}

  /// Whether there is nothing but blanks left.
  [[nodiscard]] bool at_end();

  /// Calls `member(key)` for each member of the object that stands here; it reads or skips the
  /// value. A key with escapes is given as it is written.
  template <class Member>
  void members(const Member& member) {
    take('{', "an object");
    for (bool more = !took('}'); more; more = next_or('}')) {
      const std::string_view key = string("a key");
      take(':', "':'");
      member(key);
    }
  }
  /// Calls `element()` for each element of the array that stands here; it reads or skips it.
  template <class Element>
  void elements(const char* what, const Element& element) {
    take('[', what);
    for (bool more = !took(']'); more; more = next_or(']')) element();
  }
  [[nodiscard]] std::uint64_t whole_number(const char* what);
  [[nodiscard]] double number(const char* what);
  /// As it is written: escapes are not resolved.
  [[nodiscard]] std::string_view string(const char* what);
  /// A value of any kind.
  void skip();

  /// Says that `what` was expected, and what stands here instead.
  [[noreturn]] void fail_expected(std::string_view what);
  /// Says `what` of what was read last.
  [[noreturn]] void fail(std::string_view what) const;

 private:
  void skip_blanks();
  [[nodiscard]] bool took(char what);
  void take(char what, std::string_view expected);
  /// True behind a comma, false behind `close`.
  [[nodiscard]] bool next_or(char close);

  std::string_view text_;
  std::string name_;
  std::size_t at_ = 0;
  std::size_t last_ = 0;  ///< Behind the last token: its line is what an error names.
};

}  // namespace kvferry::bench::trace
