// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/scheduler/token_reach.hpp"

#include "kvferry/base/error.hpp"

namespace kvferry::connector {

namespace {

void expect_tokens(std::uint32_t tokens) {
  if (tokens == 0) {
    throw ConfigError("a KV cache group's tokens see 0 tokens; expected their window or chunk");
  }
}

}  // namespace

TokenReach TokenReach::window(std::uint32_t tokens) {
  expect_tokens(tokens);
  return {Kind::kWindow, tokens};
}

TokenReach TokenReach::chunk(std::uint32_t tokens) {
  expect_tokens(tokens);
  return {Kind::kChunk, tokens};
}

TokenReach TokenReach::state(std::uint32_t drafts) { return {Kind::kState, drafts}; }

TokenReach TokenReach::states() { return {Kind::kStates, 0}; }

TokenReach TokenReach::none() { return {Kind::kNone, 0}; }

TokenReach TokenReach::named(std::string_view kind, std::uint32_t tokens) {
  if (kind == "window") return window(tokens);
  if (kind == "chunk") return chunk(tokens);
  if (kind == "state") return state(tokens);
  if (kind == "all" && tokens == 0) return {};
  if (kind == "states" && tokens == 0) return states();
  if (kind == "none" && tokens == 0) return none();
  throw ConfigError(
      "a KV cache group's reach is '" + std::string(kind) + "' of " + std::to_string(tokens) +
      " tokens; expected 'all', 'states' or 'none' of 0, 'window', 'chunk' or 'state'");
}

const char* TokenReach::kind_name() const {
  switch (kind_) {
    case Kind::kWindow:
      return "window";
    case Kind::kChunk:
      return "chunk";
    case Kind::kState:
      return "state";
    case Kind::kStates:
      return "states";
    case Kind::kNone:
      return "none";
    case Kind::kAll:
      break;
  }
  return "all";
}

void TokenReach::check_block(std::uint32_t block_tokens) const {
  if (kind_ != Kind::kChunk || tokens_ % block_tokens == 0) return;
  throw ConfigError("chunks of " + std::to_string(tokens_) +
                    " tokens do not begin with a block of " + std::to_string(block_tokens) +
                    "; expected a multiple of it: choose another --block-size");
}

}  // namespace kvferry::connector
