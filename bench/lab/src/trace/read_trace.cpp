// SPDX-License-Identifier: Apache-2.0
#include "trace/read_trace.hpp"

#include "kvferry/base/error.hpp"

#include "options/named_value.hpp"
#include "trace/block_numbers.hpp"
#include "trace/json_documents.hpp"
#include "trace/weka_sessions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace kvferry::bench::trace {
namespace {

namespace fs = std::filesystem;

/// In the order of TraceFormat, and behind them: any.
constexpr std::array kFormats = {"mooncake", "qwen", "weka", "auto"};

constexpr std::uint32_t kQwenBlockTokens = 16;
constexpr const char* kAnObject = "an object";

/// The files of a directory that may be sessions, sorted by name. For a file: that file.
std::vector<fs::path> files_of(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    const fs::path extension = entry.path().extension();
    if (extension == ".json" || extension == ".jsonl") files.push_back(entry.path());
  }
  if (files.empty()) {
    throw ConfigError("the directory " + path.string() + " has no .json and no .jsonl");
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// By the first document, which is the next one afterwards.
TraceFormat format_of(JsonDocuments& documents, const fs::path& file) {
  const std::optional<JsonValue> first = documents.next();
  documents.rewind();
  if (!first) throw ConfigError("the trace " + file.string() + " is empty");
  bool has_ids = false;
  bool has_chat = false;
  bool has_requests = false;
  first->members(kAnObject, [&](std::string_view key, const JsonValue& /*value*/) {
    has_ids |= key == "hash_ids";
    has_chat |= key == "chat_id";
    has_requests |= key == "requests";
  });
  if (has_requests) return TraceFormat::kWeka;
  if (has_ids) return has_chat ? TraceFormat::kQwen : TraceFormat::kMooncake;
  first->fail(
      "not of a known format: expected an object per request with the array \"hash_ids\" "
      "(mooncake; qwen with \"chat_id\"), or an object per session with \"requests\" (weka)");
}

Trace read_requests(const fs::path& file, JsonDocuments& documents, std::uint32_t block_tokens) {
  Trace trace(file.filename().string(), block_tokens);
  BlockNumbers numbers;
  std::vector<std::uint64_t> ids;
  while (const std::optional<JsonValue> request = documents.next()) {
    ids.clear();
    bool has_ids = false;
    std::optional<std::uint64_t> num_tokens;
    request->members(kAnObject, [&](std::string_view key, const JsonValue& value) {
      if (key == "hash_ids") {
        has_ids = true;
        read_ids(value, ids);
      } else if (key == "input_length") {
        num_tokens = value.whole_number("input_length, a number of tokens");
      }
    });
    if (!has_ids) {
      request->fail("expected the array \"hash_ids\" with the blocks of one request: [0, 1, 2]");
    }
    trace.add_request(numbers.of_request(ids), num_tokens);
  }
  return trace;
}

Trace read_sessions(const fs::path& path, const ReadOptions& options) {
  WekaSessions sessions(options.session_gap_s);
  for (const fs::path& file : files_of(path)) {
    JsonDocuments documents(file);
    while (const std::optional<JsonValue> session = documents.next()) {
      sessions.read_session(*session);
    }
  }
  if (options.block_tokens && *options.block_tokens != sessions.block_tokens()) {
    throw ConfigError(fmt::format("the sessions' blocks have {} tokens, not {}",
                                  sessions.block_tokens(), *options.block_tokens));
  }
  return sessions.take_merged((path / "").parent_path().filename().string());
}

Trace read_file(const fs::path& file, const ReadOptions& options) {
  JsonDocuments documents(file);
  const TraceFormat format = options.format ? *options.format : format_of(documents, file);
  if (format == TraceFormat::kWeka) return read_sessions(file, options);
  const std::uint32_t default_tokens =
      format == TraceFormat::kQwen ? kQwenBlockTokens : kMooncakeBlockTokens;
  return read_requests(file, documents, options.block_tokens.value_or(default_tokens));
}

}  // namespace

std::optional<TraceFormat> trace_format_from(std::string_view text) {
  const std::size_t place = place_of(text, kFormats, "--format");
  return place + 1 < kFormats.size() ? std::optional(TraceFormat(place)) : std::nullopt;
}

const char* to_string(TraceFormat format) { return kFormats[static_cast<std::size_t>(format)]; }

Trace read_trace(const fs::path& file, const ReadOptions& options) {
  const bool is_directory = fs::is_directory(file);
  if (is_directory && options.format.value_or(TraceFormat::kWeka) != TraceFormat::kWeka) {
    throw ConfigError(fmt::format("{} is a directory: a trace of {} is one file", file.string(),
                                  to_string(*options.format)));
  }
  Trace trace = is_directory ? read_sessions(file, options) : read_file(file, options);
  if (trace.num_accesses() == 0) throw ConfigError("the trace " + file.string() + " has no blocks");
  return trace;
}

}  // namespace kvferry::bench::trace
