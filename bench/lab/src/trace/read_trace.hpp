// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/trace.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace kvferry::bench::trace {

/// The formats of traces, by origin.
enum class TraceFormat : std::uint8_t {
  /// JSON lines of requests: `hash_ids`, `input_length` (tokens); 512 tokens per block.
  /// Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.
  kMooncake,
  /// The same with `chat_id`; 16 tokens per block. Source:
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

/// Reads "mooncake", "qwen", "weka"; "auto" gives none. For other names it throws a ConfigError
/// that lists these.
[[nodiscard]] std::optional<TraceFormat> trace_format_from(std::string_view text);
[[nodiscard]] const char* to_string(TraceFormat format);

struct ReadOptions {
  std::optional<TraceFormat> format = std::nullopt;  ///< Unset: recognised by the first object.
  std::optional<std::uint32_t> block_tokens = std::nullopt;  ///< Unset: the format's.
  /// WEKA's sessions have the times of their requests, but not their own: each session begins this
  /// many seconds after the one before.
  double session_gap_s = 60;
};

/// Reads a trace. A WEKA trace can be a directory of files (.json, .jsonl), read in the order of
/// their names. Requests are in the order of the file; WEKA's in the order of their times. An id
/// that a request names twice counts once. Throws ConfigError: there is no such file, a line does
/// not have the format, or there is no request.
[[nodiscard]] Trace read_trace(const std::filesystem::path& file, const ReadOptions& options = {});

}  // namespace kvferry::bench::trace
