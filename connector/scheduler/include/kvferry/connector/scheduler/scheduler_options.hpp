// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/token_reach.hpp"
#include "kvferry/connector/wire/owner.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/cpu_tier/policy/tier_options.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvferry::cpu_tier {
class TierDirectory;
}

namespace kvferry::connector {

/// One KV cache group of the engine. All groups share the pool's pages.
struct KvGroup {
  TokenReach reach;
  /// Of its blocks' slots: groups of fewer layers have smaller blocks.
  SlabClassId slab_class{0};
  /// Hashes of the engine that cover one of its blocks. The last of them is the block's key.
  std::uint32_t hashes_per_block = 1;
  /// Of a window's tokens, how many no token sees. The engine keeps their blocks all the same, and
  /// expects a load to bring them; but its own hits need none of them, and its cache none either.
  std::uint32_t unseen_tokens = 0;
};

/// Slots of one size, as options: from each of these the tier makes a class of its own
/// (Tier::SlabClass).
struct SlabClass {
  std::uint32_t slots_per_chunk = 1;
  /// Packed bytes of one block, by rank. 0: not told, and so as the rank says; of a later pipeline
  /// stage, which has other layers than the first. The first rank's are told.
  std::vector<std::uint64_t> slot_bytes;
};

/// Whether blocks that a streaming session computes in its later turns are stored. They are not
/// where the engine gets a later turn wrong: it goes on from a wrong recurrent state, or keeps a
/// block under a hash whose tokens the session has taken back.
enum class LaterTurns : std::uint8_t { kStored, kNotStored };

/// Which blocks of windows and chunks are stored: a load needs those before its end only, and most
/// loads end where the engine's own cache expects them to. (Of recurrent state the engine says what
/// it leaves, and full attention needs every block.)
struct Retention {
  enum class Rule : std::uint8_t {
    kEngine,  ///< Those that the engine's own cache has under their key, and those before a
              ///< junction: the end of a prefix that the tier has of full attention, and a request
              ///< shares.
    kDense    ///< All: for prompts that are forked anywhere.
  };
  Rule rule = Rule::kDense;
  /// With kEngine also what a load needs that ends at a multiple of so many tokens; 0: nothing
  /// more.
  std::uint32_t interval_tokens = 0;
};

/// Which part of a request the tier stores blocks of. A block that has the last tokens of the
/// prompt and the first ones of the output is of the output.
enum class StoredPart : std::uint8_t {
  kAll,
  kPrompt  ///< What the client has sent (StepTokens::num_prompt), and nothing that was decoded.
};

/// What the scheduler side is told; every rank's first report is compared with it (G8).
struct SchedulerOptions {
  DomainId domain;
  std::uint32_t world_size = 1;
  /// Tokens that one of the engine's hashes covers.
  std::uint32_t hash_tokens = 0;
  /// Blocks of the engine's GPU pool.
  std::uint32_t num_blocks = 0;
  /// The largest of the first rank first. One class alone has a slot in each chunk.
  std::vector<SlabClass> classes;
  /// By rank; empty: every rank keeps a copy of its own.
  std::vector<ReplicaPlace> replicas;
  /// Most chunks that the tier may come to have; the ranks' reports set how many are usable.
  std::uint32_t max_chunks = 0;
  /// The tier that engine instances share, of as many chunks; outlives the engine. None: the tier
  /// is this engine's own.
  cpu_tier::TierDirectory* shared_tier = nullptr;
  /// Which blocks the tier stores and evicts.
  cpu_tier::TierOptions tier;
  std::vector<KvGroup> groups{KvGroup{}};
  Retention retention;
  LaterTurns later_turns = LaterTurns::kStored;
  StoredPart stored_part = StoredPart::kAll;
  /// That the model has at first (SchedulerEngine::change_weights()).
  WeightsId weights;
  /// A rank that keeps silent for longer, about itself or about what it was sent, is lost. Silence
  /// counts while the engine steps, a sixteenth of this for one step at most, and 16 steps have to
  /// pass; a rest counts nothing. Longer than the ranks' own transfer_timeout (300 s by default),
  /// so that a rank that can speak names the transfer itself.
  std::chrono::nanoseconds rank_timeout = std::chrono::seconds(360);
  /// A load that some rank has not begun after so long fails; one that has begun goes on. Counted
  /// as the rank_timeout is.
  std::chrono::nanoseconds load_timeout = std::chrono::seconds(30);
  /// How long a request waits for another one's load of the same prefix at most; 0: not at all.
  std::chrono::nanoseconds max_load_wait = std::chrono::seconds(1);
  /// For tests; empty: std::chrono::steady_clock::now.
  std::function<std::chrono::steady_clock::time_point()> clock;
};

/// Throws ConfigError for options with which no scheduler side can work.
void validate(const SchedulerOptions& options);

}  // namespace kvferry::connector
