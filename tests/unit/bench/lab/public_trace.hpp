// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/read_trace.hpp"

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace kvferry::bench::trace {

/// Why a test that needs the public trace is skipped.
inline constexpr const char* kNoPublicTrace =
    "no mooncake_conversation_trace.jsonl in ../shared/traces: KVFERRY_MOONCAKE_TRACE may name it";

/// The public trace: where KVFERRY_MOONCAKE_TRACE says that it is, or beside the repository;
/// nothing if there is no such file.
inline std::optional<Trace> public_trace() {
  const char* const named = std::getenv("KVFERRY_MOONCAKE_TRACE");
  const std::filesystem::path file = named != nullptr
                                         ? std::filesystem::path(named)
                                         : std::filesystem::path(KVFERRY_SOURCE_DIR) /
                                               "../shared/traces/mooncake_conversation_trace.jsonl";
  if (!std::filesystem::exists(file)) return std::nullopt;
  return read_trace(file);
}

}  // namespace kvferry::bench::trace
