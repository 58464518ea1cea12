// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::connector {

/// How far back the tokens of a KV cache group see, and so which of a request's blocks it needs.
class TokenReach {
 public:
  /// To the first token: full attention.
  TokenReach() = default;
  /// The last `tokens` tokens, the token itself included: a sliding window. Throws ConfigError for
  /// 0.
  static TokenReach window(std::uint32_t tokens);
  /// To the last multiple of `tokens`: chunked local attention. Throws ConfigError for 0.
  static TokenReach chunk(std::uint32_t tokens);
  /// Recurrent state: a block holds what all tokens up to its end left, and nothing else is seen.
  /// The last `drafts` tokens of a step may be taken back (speculative decoding): the state of a
  /// boundary is in its block only after the step then.
  static TokenReach state(std::uint32_t drafts);
  /// Recurrent state that a step leaves in each block that it completes: the table tells where a
  /// state is, as it does of keys and values, and no word of the engine is needed.
  static TokenReach states();
  /// No token of another request ever sees them: scratch of one request, which the engine does not
  /// cache. The group is neither stored nor loaded nor waited for.
  static TokenReach none();
  /// "all", "states" or "none" (`tokens` is 0), "window", "chunk" or "state" (`tokens` are its
  /// drafts). Throws ConfigError.
  static TokenReach named(std::string_view kind, std::uint32_t tokens);

  /// Full attention: the blocks that the next token needs are a prefix.
  [[nodiscard]] bool is_all() const { return kind_ == Kind::kAll; }
  /// A block holds the state at its end, and the next token needs no other one.
  [[nodiscard]] bool is_state() const { return kind_ == Kind::kState || kind_ == Kind::kStates; }
  /// Whether the table does not tell where a state is, and the engine does.
  [[nodiscard]] bool is_told() const { return kind_ == Kind::kState; }
  [[nodiscard]] bool is_none() const { return kind_ == Kind::kNone; }
  /// Whether a block has its content after the forward of the step that completes it.
  [[nodiscard]] bool settles_in_step() const { return !is_told() || tokens_ == 0; }
  /// The first token that the next one sees when `num_computed` are computed; `num_computed` if it
  /// sees none of them. Never less than for fewer tokens.
  [[nodiscard]] std::uint32_t first_seen(std::uint32_t num_computed) const {
    switch (kind_) {
      case Kind::kWindow:
        return num_computed < tokens_ ? 0 : num_computed - (tokens_ - 1);
      case Kind::kChunk:
        return num_computed / tokens_ * tokens_;
      case Kind::kState:
      case Kind::kStates:
        return num_computed == 0 ? 0 : num_computed - 1;
      case Kind::kNone:
        return num_computed;
      case Kind::kAll:
        break;
    }
    return 0;
  }
  /// A chunk begins with a block. Throws ConfigError.
  void check_block(std::uint32_t block_tokens) const;

  bool operator==(const TokenReach&) const = default;

 private:
  enum class Kind : std::uint8_t { kAll, kWindow, kChunk, kState, kStates, kNone };

  TokenReach(Kind kind, std::uint32_t tokens) : kind_(kind), tokens_(tokens) {}

  Kind kind_ = Kind::kAll;
  std::uint32_t tokens_ = 0;
};

}  // namespace kvferry::connector
