// SPDX-License-Identifier: Apache-2.0
#include "trace/json_documents.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::bench::trace {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::size_t kMostQuoted = 24;

simdjson::padded_string text_of(const std::string& file) {
  simdjson::padded_string text;
  if (simdjson::padded_string::load(file).get(text) != simdjson::SUCCESS) {
    throw ConfigError("the trace " + file + " cannot be read");
  }
  return text;
}

}  // namespace

std::uint64_t JsonValue::whole_number(const char* what) const {
  std::uint64_t number = 0;
  if (value_.get(number) != simdjson::SUCCESS) fail_expected(what);
  return number;
}

double JsonValue::number(const char* what) const {
  double number = 0;
  if (value_.get(number) != simdjson::SUCCESS) fail_expected(what);
  return number;
}

std::string_view JsonValue::text(const char* what) const {
  std::string_view text;
  if (value_.get(text) != simdjson::SUCCESS) fail_expected(what);
  return text;
}

void JsonValue::fail_expected(std::string_view what) const {
  const std::string found = simdjson::minify(value_);
  fail(fmt::format("expected {}, found '{}'", what, found.substr(0, kMostQuoted)));
}

void JsonValue::fail(std::string_view what) const {
  throw ConfigError(fmt::format("{}: {}", *where_, what));
}

void read_ids(const JsonValue& hash_ids, std::vector<std::uint64_t>& ids) {
  hash_ids.elements("hash_ids, an array", [&](const JsonValue& id) {
    ids.push_back(id.whole_number("an id, a whole number"));
  });
}

JsonDocuments::JsonDocuments(const std::filesystem::path& file)
    : name_(file.string()), text_(text_of(name_)) {}

std::optional<JsonValue> JsonDocuments::next() {
  const std::string_view text = text_;
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks, at_), text.size());
  if (begin == text.size()) return std::nullopt;
  const std::string_view blanks = text.substr(at_, begin - at_);
  line_ += static_cast<std::size_t>(std::count(blanks.begin(), blanks.end(), '\n'));
  where_ = fmt::format("{}:{}", name_, line_ + 1);
  const std::size_t end = std::min(text.find('\n', begin), text.size());
  // What lies behind the line is padding to simdjson, which reads it and does not use it.
  const auto parsed = [&](std::size_t until) {
    return parser_.parse(text.data() + begin, until - begin, false);
  };
  simdjson::dom::element document;
  simdjson::error_code error = parsed(end).get(document);
  const bool is_first = at_ == 0;
  at_ = end;
  if (error != simdjson::SUCCESS && is_first &&
      parsed(text.size()).get(document) == simdjson::SUCCESS) {
    error = simdjson::SUCCESS;
    at_ = text.size();
  }
  if (error != simdjson::SUCCESS) {
    throw ConfigError(fmt::format("{}: expected JSON, found '{}': {}", where_,
                                  text.substr(begin, std::min(kMostQuoted, end - begin)),
                                  simdjson::error_message(error)));
  }
  return JsonValue(document, where_);
}

}  // namespace kvferry::bench::trace
