// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/trace.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace kvferry::bench::trace {

/// Who writes traces so.
enum class TraceFormat : std::uint8_t {
  /// JSON lines of requests: `hash_ids`, `input_length` (tokens); 512 tokens a block.
  /// Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.
  kMooncake,
  /// The same with `chat_id`; 16 tokens a block. Source:
  /// github.com/alibaba-edu/qwen-bailian-usagetraces-anon, README.
  kQwen,
  /// JSON objects of sessions: `block_size` (tokens), `hash_id_scope` ("local": ids are of this
  /// session only, the default; "global") and `requests`, each with `t` (seconds since the session
  /// began), `in` (tokens) and `hash_ids` of whole blocks, or of `type` "subagent" with `requests`
  /// of its own, whose `t` count from the session's beginning, too. Sources:
  /// github.com/callanjfox/kv-cache-tester (docs/trace_replay_tester.md and traces/),
  /// github.com/ai-dynamo/aiperf (models of the format and tests).
  kWeka
};

/// "mooncake", "qwen", "weka"; "auto" is none. Throws ConfigError that lists them.
[[nodiscard]] std::optional<TraceFormat> trace_format_from(std::string_view text);
[[nodiscard]] const char* to_string(TraceFormat format);

struct ReadOptions {
  std::optional<TraceFormat> format = std::nullopt;          ///< None: as the first object looks.
  std::optional<std::uint32_t> block_tokens = std::nullopt;  ///< None: the format's.
  /// WEKA's sessions say when their requests came, not when they themselves did: the next one
  /// begins so many seconds after the one before.
  double session_gap_s = 60;
};

/// Reads a trace; WEKA's may be a directory of files (.json, .jsonl), taken by name. Requests come
/// in the order of the file, WEKA's in the order of their times. An id that a request names twice
/// counts once. Throws ConfigError (no such file, not of the format, with the line; no request).
[[nodiscard]] Trace read_trace(const std::filesystem::path& file, const ReadOptions& options = {});

}  // namespace kvferry::bench::trace
