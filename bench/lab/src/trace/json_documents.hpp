// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <simdjson.h>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::bench::trace {

/// A value of a JSON document. Its functions throw a ConfigError that names file and line, what
/// was expected, and what was found. Valid until the next call of JsonDocuments::next().
class JsonValue {
 public:
  /// `where`: the file and the document's line, as errors name it; it outlives the value.
  JsonValue(simdjson::dom::element value, const std::string& where)
      : value_(value), where_(&where) {}

  /// Calls `member(key, value)` for each member of an object.
  template <class Member>
  void members(const char* what, const Member& member) const {
    simdjson::dom::object object;
    if (value_.get(object) != simdjson::SUCCESS) fail_expected(what);
    for (const auto& [key, value] : object) member(key, JsonValue(value, *where_));
  }
  /// Calls `element(value)` for each element of an array.
  template <class Element>
  void elements(const char* what, const Element& element) const {
    simdjson::dom::array array;
    if (value_.get(array) != simdjson::SUCCESS) fail_expected(what);
    for (const simdjson::dom::element one : array) element(JsonValue(one, *where_));
  }
  [[nodiscard]] std::uint64_t whole_number(const char* what) const;
  [[nodiscard]] double number(const char* what) const;
  [[nodiscard]] std::string_view text(const char* what) const;

  /// Throws the error that `what` was expected, and this value was found instead.
  [[noreturn]] void fail_expected(std::string_view what) const;
  /// Throws the error `what` about this value.
  [[noreturn]] void fail(std::string_view what) const;

 private:
  simdjson::dom::element value_;
  const std::string* where_;
};

/// Appends the ids of `hash_ids` to `ids`.
void read_ids(const JsonValue& hash_ids, std::vector<std::uint64_t>& ids);

/// The JSON documents of a file: one on each line, or a single one that has several lines. Of a
/// file, memory holds its text and one parsed document.
class JsonDocuments {
 public:
  /// Throws a ConfigError if the file cannot be read.
  explicit JsonDocuments(const std::filesystem::path& file);

  /// The next document; none at the end of the file. Throws a ConfigError that names the line if
  /// it is not JSON.
  [[nodiscard]] std::optional<JsonValue> next();
  /// The first document is the next one again.
  void rewind() { at_ = line_ = 0; }

 private:
  const std::string name_;
  simdjson::padded_string text_;
  simdjson::dom::parser parser_;
  std::size_t at_ = 0;
  std::size_t line_ = 0;
  std::string where_;
};

}  // namespace kvferry::bench::trace
