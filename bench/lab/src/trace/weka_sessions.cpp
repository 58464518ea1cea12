// SPDX-License-Identifier: Apache-2.0
#include "trace/weka_sessions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace kvferry::bench::trace {

void WekaSessions::read_session(const JsonValue& session) {
  std::optional<std::uint32_t> block_tokens;
  bool is_local = true;
  bool has_requests = false;
  session.members("a session, an object", [&](std::string_view key, const JsonValue& value) {
    if (key == "block_size") {
      const std::uint64_t tokens = value.whole_number("block_size, in tokens");
      if (tokens == 0 || tokens > std::numeric_limits<std::uint32_t>::max()) {
        value.fail(fmt::format("block_size is {}: expected the tokens of a block", tokens));
      }
      block_tokens = static_cast<std::uint32_t>(tokens);
    } else if (key == "hash_id_scope") {
      const std::string_view scope = value.text("hash_id_scope, \"local\" or \"global\"");
      if (scope != "local" && scope != "global") {
        value.fail(fmt::format("hash_id_scope is '{}': expected local or global", scope));
      }
      is_local = scope == "local";
    } else if (key == "requests") {
      has_requests = true;
      read_entries(value);
    }
  });
  if (!block_tokens || !has_requests) {
    session.fail("expected a session with block_size and requests");
  }
  if (num_sessions_ > 0 && (*block_tokens != block_tokens_ || is_local != is_local_)) {
    session.fail(fmt::format("block_size {} and {} ids, but {} and {} in the sessions before",
                             *block_tokens, is_local ? "local" : "global", block_tokens_,
                             is_local_ ? "local" : "global"));
  }
  block_tokens_ = *block_tokens;
  is_local_ = is_local;
  close_session();
}

void WekaSessions::read_entries(const JsonValue& entries) {
  entries.elements("requests, an array", [&](const JsonValue& entry) { read_entry(entry); });
}

// The recursion goes as deep as subagents are nested; simdjson refuses more than 1,024 levels.
void WekaSessions::read_entry(const JsonValue& entry) {
  std::optional<double> seconds;
  std::optional<std::uint64_t> num_tokens;
  bool is_subagent = false;
  bool has_requests = false;
  std::vector<std::uint64_t> ids;
  entry.members("a request, an object", [&](std::string_view key, const JsonValue& value) {
    if (key == "t") {
      seconds = value.number("t, in seconds");
    } else if (key == "in" || key == "input_length") {
      num_tokens = value.whole_number("in, a number of tokens");
    } else if (key == "type") {
      is_subagent = value.text("type, \"n\", \"s\" or \"subagent\"") == "subagent";
    } else if (key == "hash_ids") {
      read_ids(value, ids);
    } else if (key == "requests") {
      has_requests = true;
      read_entries(value);
    }
  });
  if (is_subagent != has_requests) entry.fail("expected a subagent and its requests, or neither");
  if (is_subagent) return;
  if (!seconds || !num_tokens) entry.fail("expected a request with t (seconds) and in (tokens)");
  const std::size_t begin = session_ids_.size();
  session_ids_.insert(session_ids_.end(), ids.begin(), ids.end());
  session_.push_back({*seconds, *num_tokens, begin, session_ids_.size()});
}

void WekaSessions::close_session() {
  const double start = gap_s_ * static_cast<double>(num_sessions_);
  std::vector<std::uint32_t>& all = blocks_.emplace_back();
  all.reserve(session_ids_.size());
  for (Request& request : session_) {
    const auto blocks = numbers_.of_request(
        std::span(session_ids_).subspan(request.begin, request.end - request.begin));
    request.seconds += start;
    request.session = num_sessions_;
    request.begin = all.size();
    all.insert(all.end(), blocks.begin(), blocks.end());
    request.end = all.size();
    requests_.push_back(request);
  }
  ++num_sessions_;
  if (is_local_) numbers_.forget_ids();
  session_.clear();
  session_ids_.clear();
}

Trace WekaSessions::take_merged(const std::string& name) {
  std::stable_sort(requests_.begin(), requests_.end(),
                   [](const Request& a, const Request& b) { return a.seconds < b.seconds; });
  Trace trace(name, block_tokens_);
  std::vector<std::size_t> which;
  for (std::vector<std::uint32_t>& blocks : blocks_) {
    which.push_back(trace.add_blocks(std::move(blocks)));
  }
  for (const Request& request : requests_) {
    trace.add_request(which[request.session], request.begin, request.end - request.begin,
                      request.num_tokens);
  }
  blocks_.clear();
  requests_.clear();
  return trace;
}

}  // namespace kvferry::bench::trace
