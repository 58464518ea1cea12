// SPDX-License-Identifier: Apache-2.0
#include "trace/read_trace.hpp"

#include "kvferry/base/error.hpp"

#include "trace/block_numbers.hpp"
#include "trace/json_cursor.hpp"
#include "trace/weka_sessions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>
#include <vector>

namespace kvferry::bench::trace {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::pair<const char*, TraceFormat>, 3> kFormats = {
    {{"mooncake", TraceFormat::kMooncake},
     {"qwen", TraceFormat::kQwen},
     {"weka", TraceFormat::kWeka}}};

constexpr std::uint32_t kQwenBlockTokens = 16;

std::string text_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  const auto size = stream ? static_cast<std::streamoff>(stream.tellg()) : -1;
  std::string text(static_cast<std::size_t>(std::max<std::streamoff>(size, 0)), '\0');
  stream.seekg(0);
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!stream || size < 0) throw ConfigError("the trace " + file.string() + " cannot be read");
  return text;
}

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

TraceFormat format_of(const std::string& text, const fs::path& file) {
  JsonCursor json(text, file.string());
  bool has_ids = false;
  bool has_chat = false;
  bool has_requests = false;
  if (json.at_end()) json.fail("the file is empty");
  json.members([&](std::string_view key) {
    has_ids |= key == "hash_ids";
    has_chat |= key == "chat_id";
    has_requests |= key == "requests";
    json.skip();
  });
  if (has_requests) return TraceFormat::kWeka;
  if (has_ids) return has_chat ? TraceFormat::kQwen : TraceFormat::kMooncake;
  json.fail(
      "not of a known format: expected an object per request with the array \"hash_ids\" "
      "(mooncake; qwen with \"chat_id\"), or an object per session with \"requests\" (weka)");
}

Trace read_requests(const std::string& text, const fs::path& file, std::uint32_t block_tokens) {
  JsonCursor json(text, file.string());
  Trace trace(file.filename().string(), block_tokens);
  BlockNumbers numbers;
  std::vector<std::uint64_t> ids;
  while (!json.at_end()) {
    ids.clear();
    bool has_ids = false;
    std::optional<std::uint64_t> num_tokens;
    json.members([&](std::string_view key) {
      if (key == "hash_ids") {
        has_ids = true;
        json.elements("hash_ids, an array",
                      [&] { ids.push_back(json.whole_number("an id, a whole number")); });
      } else if (key == "input_length") {
        num_tokens = json.whole_number("input_length, a number of tokens");
      } else {
        json.skip();
      }
    });
    if (!has_ids) {
      json.fail("expected the array \"hash_ids\" with the blocks of one request: [0, 1, 2]");
    }
    trace.add_request(numbers.of_request(ids), num_tokens);
  }
  return trace;
}

Trace read_sessions(const fs::path& path, const ReadOptions& options) {
  WekaSessions sessions(options.session_gap_s);
  for (const fs::path& file : files_of(path)) {
    const std::string text = text_of(file);
    JsonCursor json(text, file.string());
    while (!json.at_end()) sessions.read_session(json);
  }
  if (options.block_tokens && *options.block_tokens != sessions.block_tokens()) {
    throw ConfigError(fmt::format("the sessions' blocks have {} tokens, not {}",
                                  sessions.block_tokens(), *options.block_tokens));
  }
  return sessions.take_merged((path / "").parent_path().filename().string());
}

}  // namespace

std::optional<TraceFormat> trace_format_from(std::string_view text) {
  if (text == "auto") return std::nullopt;
  for (const auto& [name, format] : kFormats) {
    if (text == name) return format;
  }
  throw ConfigError(fmt::format("'{}' is not a format: write auto, mooncake, qwen or weka", text));
}

const char* to_string(TraceFormat format) {
  return kFormats[static_cast<std::size_t>(format)].first;
}

Trace read_trace(const fs::path& file, const ReadOptions& options) {
  const bool is_directory = fs::is_directory(file);
  const std::string text = is_directory ? std::string() : text_of(file);
  const TraceFormat format = options.format ? *options.format
                             : is_directory ? TraceFormat::kWeka
                                            : format_of(text, file);
  if (is_directory && format != TraceFormat::kWeka) {
    throw ConfigError(fmt::format("{} is a directory: a trace of {} is one file", file.string(),
                                  to_string(format)));
  }
  const std::uint32_t default_tokens =
      format == TraceFormat::kQwen ? kQwenBlockTokens : kMooncakeBlockTokens;
  Trace trace = format == TraceFormat::kWeka
                    ? read_sessions(file, options)
                    : read_requests(text, file, options.block_tokens.value_or(default_tokens));
  if (trace.num_accesses() == 0) throw ConfigError("the trace " + file.string() + " has no blocks");
  return trace;
}

}  // namespace kvferry::bench::trace
