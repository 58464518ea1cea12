// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/token_reach.hpp"
#include "kvferry/connector/wire/owner.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/cpu_tier/peers/tier_keeper.hpp"
#include "kvferry/cpu_tier/policy/tier_options.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvferry::recorder {
class Recorder;
}

namespace kvferry::connector {

/// One KV cache group of the engine. All groups share the pool's pages.
struct KvGroup {
  TokenReach reach;
  /// The class of its blocks' slots: groups of fewer layers have smaller blocks.
  SlabClassId slab_class{0};
  /// How many of the engine's hashes cover one of its blocks. The last of them is the block's key.
  std::uint32_t hashes_per_block = 1;
  /// How many tokens of a window no token sees. The engine keeps their blocks all the same, and
  /// expects a load to bring them, although neither its own hits nor its cache need them.
  std::uint32_t unseen_tokens = 0;
};

/// Slots of one size, as options. The tier makes one class (Tier::SlabClass) from each of these.
struct SlabClass {
  std::uint32_t slots_per_chunk = 1;
  /// By rank: packed bytes of one block. 0: unknown until the rank reports it. That is so for later
  /// pipeline stages, which have other layers than the first; the first rank's are never 0.
  std::vector<std::uint64_t> slot_bytes;
};

/// Whether blocks that a streaming session computes in its later turns are stored. They are not
/// stored with an engine that gets later turns wrong: it continues from a wrong recurrent state, or
/// keeps a block under a hash whose tokens the session has taken back.
enum class LaterTurns : std::uint8_t { kStored, kNotStored };

/// Whether other connectors may load blocks for the same requests (vLLM: under a MultiConnector).
/// If none does, the engine has found in its own cache what it has beyond the tokens of a lookup.
enum class OtherLoads : std::uint8_t { kPossible, kNone };

/// Which blocks of windows and chunks are stored. A load needs only those before its end, and most
/// loads end where the engine's own cache expects them to. (For recurrent state the engine says
/// which states it leaves, and full attention needs every block.)
struct Retention {
  enum class Rule : std::uint8_t {
    kEngine,  ///< Blocks that the engine's own cache has under their key, and those before a
              ///< junction: the end of a prefix that requests share and whose blocks of full
              ///< attention the tier has.
    kDense    ///< All blocks, for prompts that can fork anywhere.
  };
  Rule rule = Rule::kDense;
  /// With kEngine, also the blocks for loads that end at multiples of this many tokens; 0: no
  /// others.
  std::uint32_t interval_tokens = 0;
};

/// For which part of a request the tier stores blocks. A block with the last tokens of the prompt
/// and the first ones of the output belongs to the output.
enum class StoredPart : std::uint8_t {
  kAll,
  kPrompt  ///< Only what the client has sent (StepTokens::num_prompt), not what was decoded.
};

/// The options of the scheduler side. Every rank's first report is compared with them (G8).
struct SchedulerOptions {
  DomainId domain;
  std::uint32_t world_size = 1;
  /// Number of tokens that one of the engine's hashes covers.
  std::uint32_t hash_tokens = 0;
  /// Number of blocks of the engine's GPU pool.
  std::uint32_t num_blocks = 0;
  /// In the order of the first rank's sizes, the largest first. If there is only one class, each
  /// chunk has one slot.
  std::vector<SlabClass> classes;
  /// By rank; empty: every rank keeps its own copy.
  std::vector<ReplicaPlace> replicas;
  /// Most chunks that the tier can ever have. The ranks' reports set how many are usable.
  std::uint32_t max_chunks = 0;
  /// The tier that engine instances share, with this many chunks; it outlives the engine. Null: the
  /// tier is this engine's own.
  cpu_tier::TierDirectory* shared_tier = nullptr;
  /// kNone: the shared tier is kept in finish_plan(), by `clock`.
  cpu_tier::KeeperThread keeper_thread = cpu_tier::KeeperThread::kOwn;
  /// For a replay: makes the peers of a tier that was shared. There is no keeper then; see
  /// SchedulerEngine::tend(). Empty: `shared_tier` says whether there are any.
  std::function<std::unique_ptr<cpu_tier::Peers>()> replayed_peers;
  [[nodiscard]] bool shares_tier() const { return shared_tier != nullptr || replayed_peers; }
  /// Which blocks the tier stores and evicts.
  cpu_tier::TierOptions tier;
  std::vector<KvGroup> groups{KvGroup{}};
  Retention retention;
  LaterTurns later_turns = LaterTurns::kStored;
  OtherLoads other_loads = OtherLoads::kPossible;
  StoredPart stored_part = StoredPart::kAll;
  /// The model's weights at first (SchedulerEngine::change_weights()).
  WeightsId weights;
  /// A rank is lost if it is silent for longer than this, about itself or about what was sent to
  /// it. Silence counts while the engine steps: one step counts a sixteenth of this time at most,
  /// and at least 16 steps have to pass. An idle engine counts nothing. This is longer than the
  /// ranks' own transfer_timeout (300 s by default), so that a rank that works names the transfer
  /// itself.
  std::chrono::nanoseconds rank_timeout = std::chrono::seconds(360);
  /// A load that some rank has not begun within this time fails; a load that has begun continues.
  /// It is counted in the same way as the rank_timeout.
  std::chrono::nanoseconds load_timeout = std::chrono::seconds(30);
  /// How long a request waits at most for another request's load of the same prefix; 0: it does not
  /// wait.
  std::chrono::nanoseconds max_load_wait = std::chrono::seconds(1);
  /// A clock for tests; empty: std::chrono::steady_clock::now. A keeper with a thread of its own
  /// reads it there.
  std::function<std::chrono::steady_clock::time_point()> clock;
  /// Records what the scheduler side is called with and what it decides; it outlives the engine,
  /// and records only this one. Null: nothing is recorded.
  recorder::Recorder* recorder = nullptr;
};

/// Throws ConfigError for options with which no scheduler side can work.
void validate(const SchedulerOptions& options);

}  // namespace kvferry::connector
