// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/block_numbers.hpp"
#include "trace/json_documents.hpp"
#include "trace/trace.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvferry::bench::trace {

/// Collects WEKA's sessions (TraceFormat::kWeka), and orders their requests.
class WekaSessions {
 public:
  explicit WekaSessions(double gap_s) : gap_s_(gap_s) {}

  /// Reads one session. Throws ConfigError.
  void read_session(const JsonValue& session);
  /// Returns the requests by time; those of the same time by session, then in the session's order.
  /// Afterwards the collection is empty.
  [[nodiscard]] Trace take_merged(const std::string& name);
  /// Tokens per block of all sessions; 0 if there are no sessions.
  [[nodiscard]] std::uint32_t block_tokens() const { return block_tokens_; }

 private:
  struct Request {
    double seconds = 0;
    std::uint64_t num_tokens = 0;
    std::size_t begin = 0;  ///< In its session's ids, then blocks.
    std::size_t end = 0;
    std::size_t session = 0;
  };
  void read_entries(const JsonValue& entries);
  void read_entry(const JsonValue& entry);
  /// Converts the ids of the session that was read to blocks.
  void close_session();

  const double gap_s_;
  std::uint32_t block_tokens_ = 0;
  std::size_t num_sessions_ = 0;
  bool is_local_ = true;
  BlockNumbers numbers_;
  std::vector<Request> requests_;
  std::vector<std::vector<std::uint32_t>> blocks_;  ///< By session.
  std::vector<Request> session_;
  std::vector<std::uint64_t> session_ids_;
};

}  // namespace kvferry::bench::trace
