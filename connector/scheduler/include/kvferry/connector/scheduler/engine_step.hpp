// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

/// What the engine and the scheduler side tell each other about a step.
namespace kvferry::connector {

/// How the blocks of a scheduled request relate to its table.
enum class TableUpdate : std::uint8_t { kAppend, kReplace };

/// Blocks by KV cache group.
using GroupBlocks = std::span<const std::span<const BlockId>>;

/// The most that a request wants, in tokens. These limits apply to this request alone: blocks of
/// the same prefix that another request stores are stored.
struct RequestLimits {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  /// Most tokens of one load, after the tokens that the engine itself has.
  std::uint32_t max_load = kNone;
  /// Only blocks that end within this many first tokens are stored.
  std::uint32_t max_store = kNone;
};

/// The work of one step for a request, in tokens.
struct StepTokens {
  std::uint32_t num_computed = 0;   ///< Before the step, as the engine counts.
  std::uint32_t num_scheduled = 0;  ///< In the step, including drafts.
  std::uint32_t num_drafts = 0;     ///< The last of these, which may be taken back.
  /// Tokens of the prompt, as the engine counts them; in a session, those at the start of the turn.
  /// 0: unchanged.
  std::uint32_t num_prompt = 0;
};

/// The results of a fold for the engine.
struct FoldResult {
  /// Engine ids of requests whose load has ended, and which wait for it or were aborted while it
  /// ran. They are to be reported to the engine now. The ranks have announced the failed ones in
  /// this step.
  std::vector<std::string> ended;
  /// Engine ids that the ranks have announced in this step, but that no request waits for. They
  /// must not be reported to the engine, unless they are in `ended` too.
  std::vector<std::string> stale;
};

}  // namespace kvferry::connector
