// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

/// What the engine and the scheduler side tell each other of a step.
namespace kvferry::connector {

/// How the blocks of a scheduled request relate to its table.
enum class TableUpdate : std::uint8_t { kAppend, kReplace };

/// Blocks by KV cache group.
using GroupBlocks = std::span<const std::span<const BlockId>>;

/// What a request wants at most, in tokens. It limits what is done for this request alone: what
/// another request stores of the same prefix is stored.
struct RequestLimits {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  /// What one load brings, after the tokens that the engine has itself.
  std::uint32_t max_load = kNone;
  /// Its blocks are stored that end with one of the first so many tokens.
  std::uint32_t max_store = kNone;
};

/// What a step does for a request, in tokens.
struct StepTokens {
  std::uint32_t num_computed = 0;   ///< Before it, as the engine counts.
  std::uint32_t num_scheduled = 0;  ///< In it, drafts included.
  std::uint32_t num_drafts = 0;     ///< The last ones of them, which may be taken back.
  /// Of the prompt, as the engine counts: in a session what the turn begins with. 0: as before.
  std::uint32_t num_prompt = 0;
};

/// What a fold decided for the engine.
struct FoldResult {
  /// Engine ids whose load has ended for an owner that waits for it, or that was aborted while it
  /// loaded: to be told now. Those that failed have been announced by the ranks in this step.
  std::vector<std::string> ended;
  /// Engine ids that the ranks have announced in this step and that no request waits for any more:
  /// not to be told, unless they are in `ended` too.
  std::vector<std::string> stale;
};

}  // namespace kvferry::connector
