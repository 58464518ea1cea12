// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/engine_step.hpp"
#include "kvferry/connector/scheduler/engine_view.hpp"
#include "kvferry/connector/scheduler/scheduler_options.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include "block_groups.hpp"
#include "per_request.hpp"
#include "proven_blocks.hpp"
#include "request_table.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

namespace kvferry::connector {

/// A recurrent state that the engine left in a block: the one at the end of the group's block `at`.
struct LeftState {
  GroupId group;
  std::uint32_t at = 0;
  BlockId block;
};

/// Decides which of the engine's blocks are known to hold what their keys say, from what the engine
/// says of its steps and loads (ProvenBlocks says what a proof is worth).
///
/// A request's blocks are proven from its first one on. One is proven if the request computed it
/// whole, on proven blocks, in plans without a gap; if a load of ours brought it; or if it was
/// found, and is proven already. What another connector loads within a step is *in doubt* until a
/// *witness* has come back: a store of no block, which every rank answers after that step. So is
/// what stands on another request's blocks in doubt.
///
/// It knows no tier and plans nothing. One thread at a time.
class BlockProver {
 public:
  BlockProver(RequestTable& requests, const BlockGroups& groups, std::uint32_t num_blocks,
              LaterTurns later_turns)
      : requests_(requests), groups_(groups), later_turns_(later_turns), proven_(num_blocks) {}

  // ---- what the engine says ----

  /// So many tokens of the request are in the engine's own cache. `last`: the last plan made.
  void note_local(const Request& request, std::uint32_t num_local_tokens, PlanSeq last);
  /// A request of that generation writes the block from now on; 0: a load, or a request that is not
  /// followed. Null blocks are ignored.
  void begin_write(GroupId group, BlockId block, Generation writer) {
    if (!groups_.is_null(group, block)) proven_.begin_write(block, writer);
  }
  void begin_write(GroupId group, std::span<const BlockId> blocks, Generation writer) {
    for (const BlockId block : blocks) begin_write(group, block, writer);
  }
  /// The request is in a step after plan `last`: which tokens are covered, which blocks written.
  /// Its tables have what the step added, `added` by group (or empty: none in any).
  void cover(const Request& request, TableUpdate update, GroupBlocks added,
             const StepTokens& tokens, PlanSeq last);
  /// A step that covers the request leaves a state, in a block that it has begun to write.
  void note_state(const Request& request, const LeftState& state);
  /// The engine knows so many tokens of the request, and goes on to end it.
  void note_known(const Request& request, std::uint32_t num_tokens);
  /// A load of ours writes all blocks of the request's tables from position `first` on, and brings
  /// those up to position `end`.
  void begin_load(const Request& request, std::uint32_t first, std::uint32_t end);
  /// That load has ended well.
  void end_load(const Request& request);
  /// To be called before the request's tables are cleared. The engine may have given blocks their
  /// keys in the pass in which it preempted the request: what was not computed is not proven.
  void on_preempted(const Request& request);
  /// It has keys up to position `left` only.
  void on_keys_dropped(const Request& request, std::uint32_t left);
  void drop(const Request& request);

  // ---- what is proven ----

  [[nodiscard]] bool holds(BlockId block, const cpu_tier::BlockKey& key) const {
    return proven_.holds(block, key);
  }
  /// Proves as many of the request's blocks as can be: the number of positions from the first whose
  /// blocks are proven, in every group that has them.
  std::uint32_t prove(const Request& request);
  /// The same as of the last prove(), or less if that has been taken back.
  [[nodiscard]] std::uint32_t num_proven(const Request& request) const {
    return proofs_.of(request).num_proven;
  }
  /// Takes the states out of doubt that stand on proven positions. Returns those that are proven
  /// now; the other ones have been overwritten.
  [[nodiscard]] std::vector<LeftState> take_proven_states(const Request& request);

  // ---- doubt ----

  /// Some of what the request has may come to be proven without a step of its own.
  void doubt(const Request& request);
  [[nodiscard]] std::span<const Request* const> in_doubt() const { return in_doubt_; }
  /// Takes requests out of doubt that are not to be kept, or have nothing left that waits.
  template <class IsKept>
  void settle_doubt(IsKept is_kept) {
    std::erase_if(in_doubt_, [&](const Request* request) {
      Proof& proof = proofs_.of(*request);
      if (is_kept(*request) && waits(*request, proof)) return false;
      proof.is_in_doubt = false;
      return true;
    });
  }
  /// Whether a request in doubt needs a witness that it does not have.
  [[nodiscard]] bool needs_witness() const;
  /// All of those have this one.
  void set_witness(TransferId witness);
  /// Every rank has answered these witnesses.
  void hear(std::span<const TransferId> witnesses);

  // ---- what is taken back ----

  /// The first position of the request's computed ones that has one of the blocks.
  [[nodiscard]] std::optional<std::uint32_t> find_first(
      const Request& request, const std::unordered_set<BlockId>& blocks) const;
  /// From that position on nothing is proven any more. Returns the blocks that the request wrote
  /// there.
  [[nodiscard]] std::vector<BlockId> take_back(const Request& request, std::uint32_t first);
  /// Nothing is proven of the request beyond the keys that it has now.
  void distrust_new_keys(const Request& request);
  void forget(BlockId block) { proven_.forget(block); }
  /// Forgets all proofs, but of blocks that the pool (null: none) has under their key still.
  void forget_all(const BlockPool* pool);

 private:
  /// How a request came by the tokens that it has when a plan names it with a whole table.
  enum class Admission : std::uint8_t {
    kUnknown,   ///< What it has, it found in the engine's cache, as far as is known.
    kLookedUp,  ///< The same up to `num_local_tokens`; what follows another connector loads.
    kOwnLoad,   ///< Our load brought them.
    kRan        ///< A plan has named it: a session that goes on has what it computed.
  };
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  /// Of the tokens that a request has, those that are known to be right.
  struct Proof {
    // What every step reads comes first.
    /// [from, to): computed by plans of this incarnation without a gap, or brought by a load of
    /// another connector that has been shown to be good.
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    /// As far as these tokens are the request's own: after them are drafts, which may be taken
    /// back.
    std::uint32_t sure_to = 0;
    /// What a failed load took back is computed again up to here, in one step or several.
    std::uint32_t rewritten_to = 0;
    /// Tokens from here up to `from` are loaded by another connector within the step that computes;
    /// kNone: none are. They count when a witness has shown that they came.
    std::uint32_t awaited_from = kNone;
    /// Positions from the first whose blocks are proven, in every group that has them.
    std::uint32_t num_proven = 0;
    bool has_drafts = false;  ///< A plan of this incarnation had.
    bool is_in_doubt = false;
    Admission admission = Admission::kUnknown;
    std::uint32_t num_local_tokens = 0;  ///< As of the last lookup.
    PlanSeq looked_up_after;             ///< The last plan before that lookup.
    TransferId witness;
    /// The position at whose end the recurrent state is that it found; 0: it found none.
    std::uint32_t state_end = 0;
    /// Positions from the first that can be proven at all: none where the engine goes on from a
    /// wrong state, and of a request whose synchronous load failed, those whose keys were known
    /// then.
    std::uint32_t num_trusted = kNone;
    /// Positions of the load under way.
    std::uint32_t load_first = 0;
    std::uint32_t load_end = 0;
    std::vector<LeftState> states;  ///< They wait for the proof of the tokens before them.

    /// What was computed proves nothing any more, from here on.
    void begin_anew() {
      states.clear();
      from = to;
      awaited_from = kNone;
    }
  };

  void cover_table(const Request& request, Proof& proof, std::uint32_t num_computed, PlanSeq last);
  void cover_added(const Request& request, Proof& proof, GroupBlocks added,
                   const StepTokens& tokens);
  /// How the request came by what it has. Returns the first token whose block is written by a
  /// request or a load.
  [[nodiscard]] std::uint32_t admit(const Request& request, Proof& proof,
                                    std::uint32_t num_computed, PlanSeq last);
  /// The same of a request that a plan has named.
  void admit_again(const Request& request, Proof& proof, std::uint32_t num_computed);
  /// The token from which on the request counts as having computed its blocks itself
  /// (Proof::from), when a plan names it with a whole table. That is `num_computed`, except if this
  /// token lies amid blocks that the request has found, and what was found of each is proven. Then
  /// it is the last token before that at which a block ends in every group: the heads of these
  /// blocks keep what they held. The engine steps back into blocks that it has found by the last
  /// token of a prompt that was loaded to its end, or by the tokens whose windows are not cached.
  [[nodiscard]] std::uint32_t first_continued(const Request& request,
                                              std::uint32_t num_computed) const;
  /// A step computes blocks of the writer again, which other requests may share: what these
  /// computed on them in earlier steps they computed from what was there before. The blocks are
  /// those of the tokens [first, end), as far as `added` has not just brought them.
  void void_shared(const Request& writer, GroupBlocks added, std::uint32_t first,
                   std::uint32_t end);
  /// Of the positions from the last proven one to `end`, up to which the request's prefix can be
  /// proven as far as the group is concerned.
  [[nodiscard]] std::uint32_t end_by_blocks(const Request& request, const Proof& proof,
                                            GroupId group, std::uint32_t end) const;
  /// The same of a group of states.
  [[nodiscard]] std::uint32_t end_by_state(const Request& request, const Proof& proof,
                                           GroupId group, std::uint32_t end) const;
  /// The first position to be proven that lies amid a block of which the request has found the
  /// first tokens and computed the others, or kNone: it is proven with the whole block only.
  [[nodiscard]] std::uint32_t half_found_from(const Proof& proof, GroupId group) const;
  /// The first block of the group that the request has computed from its first token on.
  [[nodiscard]] std::uint32_t first_covered_of(const Proof& proof, GroupId group) const {
    const std::uint32_t block_tokens = groups_.block_tokens(group);
    return proof.from / block_tokens + (proof.from % block_tokens == 0 ? 0 : 1);
  }
  /// Whether the group's block holds what its key says, if the blocks before it do.
  [[nodiscard]] bool is_right_at(const Request& request, const Proof& proof, GroupId group,
                                 std::uint32_t at) const;
  /// Proves the blocks that the request has computed, up to position `end` of its proven prefix.
  void prove_computed(const Request& request, const Proof& proof, GroupId group, std::uint32_t end);
  /// Blocks of the group that hold the first `num_tokens` tokens.
  [[nodiscard]] std::size_t blocks_to(GroupId group, std::uint32_t num_tokens) const {
    return (std::size_t{num_tokens} + groups_.block_tokens(group) - 1) /
           groups_.block_tokens(group);
  }
  [[nodiscard]] std::uint32_t num_provable(const Request& request, const Proof& proof) const;
  [[nodiscard]] bool waits(const Request& request, const Proof& proof) const;
  void leave_doubt(const Request& request, Proof& proof);
  void forget_uncomputed(const Request& request, const Proof& proof);

  RequestTable& requests_;
  const BlockGroups& groups_;
  LaterTurns later_turns_;
  ProvenBlocks proven_;
  PerRequest<Proof> proofs_;
  std::vector<const Request*> in_doubt_;  ///< Some of what they have is not proven yet.
};

}  // namespace kvferry::connector
