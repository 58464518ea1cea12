// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::connector {

/// How far back the tokens of a KV cache group see, and therefore which blocks of a request it
/// needs.
class TokenReach {
 public:
  /// The tokens see all tokens back to the first: full attention.
  TokenReach() = default;
  /// The tokens see the last `tokens` tokens, including themselves: a sliding window. Throws
  /// ConfigError for 0.
  static TokenReach window(std::uint32_t tokens);
  /// The tokens see back to the last multiple of `tokens`: chunked local attention. Throws
  /// ConfigError for 0.
  static TokenReach chunk(std::uint32_t tokens);
  /// Recurrent state: a block holds the state after all tokens up to its end, and nothing else is
  /// seen. The last `drafts` tokens of a step may be taken back (speculative decoding). In that
  /// case the state of a boundary is in its block only after the step.
  static TokenReach state(std::uint32_t drafts);
  /// Recurrent state that a step leaves in each block that it completes. The table shows where a
  /// state is, as for keys and values, and the engine need not say it.
  static TokenReach states();
  /// No token of another request ever sees them: scratch memory of one request, which the engine
  /// does not cache. The group is neither stored nor loaded nor waited for.
  static TokenReach none();
  /// "all", "states" or "none" (`tokens` is 0), "window", "chunk" or "state" (`tokens` are its
  /// drafts). Throws ConfigError.
  static TokenReach named(std::string_view kind, std::uint32_t tokens);

  /// What named() makes it from.
  [[nodiscard]] const char* kind_name() const;
  [[nodiscard]] std::uint32_t num_tokens() const { return tokens_; }

  /// Whether it is full attention: the blocks that the next token needs are a prefix.
  [[nodiscard]] bool is_all() const { return kind_ == Kind::kAll; }
  /// Whether a block holds the state at its end, and the next token needs no other block.
  [[nodiscard]] bool is_state() const { return kind_ == Kind::kState || kind_ == Kind::kStates; }
  /// Whether only the engine knows where a state is, because the table does not show it.
  [[nodiscard]] bool is_told() const { return kind_ == Kind::kState; }
  [[nodiscard]] bool is_none() const { return kind_ == Kind::kNone; }
  /// Whether a block has its content after the forward of the step that completes it.
  [[nodiscard]] bool settles_in_step() const { return !is_told() || tokens_ == 0; }
  /// The first token that the next one sees when `num_computed` are computed; `num_computed` if it
  /// sees none of them. It never decreases as `num_computed` grows.
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
  /// Checks that a chunk begins with a block. Throws ConfigError.
  void check_block(std::uint32_t block_tokens) const;

  bool operator==(const TokenReach&) const = default;

 private:
  enum class Kind : std::uint8_t { kAll, kWindow, kChunk, kState, kStates, kNone };

  TokenReach(Kind kind, std::uint32_t tokens) : kind_(kind), tokens_(tokens) {}

  Kind kind_ = Kind::kAll;
  std::uint32_t tokens_ = 0;
};

}  // namespace kvferry::connector
