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

/// A recurrent state that the engine left in a block. It is the state at the end of the group's
/// block `at`.
struct LeftState {
  GroupId group;
  std::uint32_t at = 0;
  BlockId block;
};

/// Decides which of the engine's blocks are known to hold what their keys say, from what the engine
/// says about its steps and loads (ProvenBlocks defines what a proof means).
///
/// A request's blocks are proven in order, from the first one on. A block is proven if the request
/// computed it completely, on proven blocks, in plans without a gap; if our own load brought it; or
/// if the request found it in the cache and it is proven already. Blocks that another connector
/// loads within a step are *in doubt* until a *witness* has come back: a store of no block, which
/// every rank answers after that step. Blocks that depend on another request's blocks in doubt are
/// in doubt too.
///
/// It knows no tier and plans nothing. One thread at a time.
class BlockProver {
 public:
  BlockProver(RequestTable& requests, const BlockGroups& groups, std::uint32_t num_blocks,
              LaterTurns later_turns, OtherLoads other_loads = OtherLoads::kPossible)
      : requests_(requests),
        groups_(groups),
        later_turns_(later_turns),
        other_loads_(other_loads),
        proven_(num_blocks) {}

  // ---- what the engine says ----

  /// The engine's own cache has this many tokens of the request. `last` is the last plan that was
  /// made.
  void note_local(const Request& request, std::uint32_t num_local_tokens, PlanSeq last);
  /// From now on a request of that generation writes the block; 0: a load, or a request that is not
  /// followed. Null blocks are ignored.
  void begin_write(GroupId group, BlockId block, Generation writer) {
    if (!groups_.is_null(group, block)) proven_.begin_write(block, writer);
  }
  void begin_write(GroupId group, std::span<const BlockId> blocks, Generation writer) {
    if (groups_.needs_all(group)) {  // It has no null blocks.
      proven_.begin_write(blocks, writer);
    } else {
      for (const BlockId block : blocks) begin_write(group, block, writer);
    }
  }
  /// The request is in a step after plan `last`, which sets the covered tokens and the written
  /// blocks. Its tables include what the step added: `added`, by group (or empty: none in any
  /// group).
  void cover(const Request& request, TableUpdate update, GroupBlocks added,
             const StepTokens& tokens, PlanSeq last);
  /// A step that covers the request leaves a state in a block that the request writes already.
  void note_state(const Request& request, const LeftState& state);
  /// The engine knows this many tokens of the request, and is about to end it.
  void note_known(const Request& request, std::uint32_t num_tokens);
  /// Our load writes all blocks of the request's tables from position `first` on, and brings those
  /// up to position `end`.
  void begin_load(const Request& request, std::uint32_t first, std::uint32_t end);
  /// That load has succeeded.
  void end_load(const Request& request);
  /// To be called before the request's tables are cleared. The engine may have given keys to blocks
  /// in the pass in which it preempted the request. Blocks that were not computed are not proven.
  void on_preempted(const Request& request);
  /// The request has keys up to position `left` only.
  void on_keys_dropped(const Request& request, std::uint32_t left);
  void drop(const Request& request);

  // ---- what is proven ----

  [[nodiscard]] bool holds(BlockId block, const cpu_tier::BlockKey& key) const {
    return proven_.holds(block, key);
  }
  /// Proves as many of the request's blocks as possible. Returns the number of positions, from the
  /// first one, whose blocks are proven in every group that has them.
  std::uint32_t prove(const Request& request);
  /// The result of the last prove(), or less if some of that has been taken back.
  [[nodiscard]] std::uint32_t num_proven(const Request& request) const {
    return proofs_.of(request).num_proven;
  }
  /// Takes the states that stand on proven positions out of doubt. Returns those that are now
  /// proven; the others have been overwritten.
  [[nodiscard]] std::vector<LeftState> take_proven_states(const Request& request);

  // ---- doubt ----

  /// Notes that blocks of the request can become proven without a step of its own.
  void doubt(const Request& request);
  [[nodiscard]] std::span<const Request* const> in_doubt() const { return in_doubt_; }
  /// Takes requests out of doubt that are not to be kept, or that wait for nothing more.
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
  /// Sets the witness of all these requests.
  void set_witness(TransferId witness);
  /// Every rank has answered these witnesses.
  void hear(std::span<const TransferId> witnesses);

  // ---- what is taken back ----

  /// The first of the request's computed positions that uses one of the blocks.
  [[nodiscard]] std::optional<std::uint32_t> find_first(
      const Request& request, const std::unordered_set<BlockId>& blocks) const;
  /// From that position on nothing is proven any more. Returns the blocks that the request wrote
  /// there.
  [[nodiscard]] std::vector<BlockId> take_back(const Request& request, std::uint32_t first);
  /// Nothing of the request is proven from now on beyond its present keys.
  void distrust_new_keys(const Request& request);
  void forget(BlockId block) { proven_.forget(block); }
  /// Forgets all proofs, except for blocks that the pool still has under their key (null: no
  /// exception).
  void forget_all(const BlockPool* pool);

 private:
  /// How a request got its tokens when a plan names it with a whole table.
  enum class Admission : std::uint8_t {
    kUnknown,   ///< As far as is known, it found them in the engine's cache.
    kLookedUp,  ///< The same up to `num_local_tokens`. The rest is another connector's load, or
                ///< the engine has found it, too, and has not told the lookup.
    kOwnLoad,   ///< Our load brought them.
    kRan        ///< A plan named it before: a session that continues has what it computed.
  };
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  /// Which of a request's tokens are known to be right.
  struct Proof {
    // The members that every step reads come first.
    /// Tokens that were computed before the last plan: the engine has given back blocks that only
    /// tokens before them see.
    std::uint32_t num_before = 0;
    /// [from, to): computed by plans of this incarnation without a gap, or brought by another
    /// connector's load that has been shown to be good.
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    /// Up to here the tokens are the request's own. Those after it are drafts, which may be taken
    /// back.
    std::uint32_t sure_to = 0;
    /// Tokens up to here that a failed load took back are computed again, in one step or several.
    std::uint32_t rewritten_to = 0;
    /// Another connector loads the tokens from here up to `from`, within the step that computes;
    /// kNone: there are none. They count when a witness has shown that they came.
    std::uint32_t awaited_from = kNone;
    /// Positions, from the first one, whose blocks are proven in every group that has them.
    std::uint32_t num_proven = 0;
    bool has_drafts = false;  ///< A plan of this incarnation had drafts.
    bool is_in_doubt = false;
    Admission admission = Admission::kUnknown;
    std::uint32_t num_local_tokens = 0;  ///< As of the last lookup.
    PlanSeq looked_up_after;             ///< The last plan before that lookup.
    /// forget_all() came after that lookup: what another connector has loaded since the lookup may
    /// be of other weights.
    bool is_lookup_void = false;
    TransferId witness;
    /// The request found the recurrent state at the end of this position; 0: it found none.
    std::uint32_t state_end = 0;
    /// Positions, from the first one, that can be proven at all. It is 0 if the engine continues
    /// from a wrong state. For a request whose synchronous load failed, it is those whose keys were
    /// known then.
    std::uint32_t num_trusted = kNone;
    /// The positions of the load under way.
    std::uint32_t load_first = 0;
    std::uint32_t load_end = 0;
    std::vector<LeftState> states;  ///< They wait until the tokens before them are proven.

    /// What was computed before proves nothing from now on.
    void begin_anew() {
      states.clear();
      from = to;
      awaited_from = kNone;
    }
  };

  /// The request writes these blocks from now on: states that it left in them before are gone, even
  /// if they had not been proven.
  static void forget_states(Proof& proof, std::span<const BlockId> blocks);
  void cover_table(const Request& request, Proof& proof, std::uint32_t num_computed, PlanSeq last);
  void cover_added(const Request& request, Proof& proof, GroupBlocks added,
                   const StepTokens& tokens);
  /// Finds out how the request got its tokens. Returns the first token whose block a request or a
  /// load writes.
  [[nodiscard]] std::uint32_t admit(const Request& request, Proof& proof,
                                    std::uint32_t num_computed, PlanSeq last);
  /// admit() for a request that a plan has named before.
  void admit_again(const Request& request, Proof& proof, std::uint32_t num_computed);
  /// The token from which on the request counts as having computed its blocks itself (Proof::from),
  /// when a plan names it with a whole table. That is `num_computed`, except if this token lies
  /// inside blocks that the request has found, each proven as far as it was found. Then it is the
  /// last token before it at which a block ends in every group, because the heads of these blocks
  /// keep their content. The engine steps back into found blocks by the last token of a prompt that
  /// was loaded to its end, or by the tokens whose windows are not cached.
  [[nodiscard]] std::uint32_t first_continued(const Request& request,
                                              std::uint32_t num_computed) const;
  /// A step computes blocks of the writer again that other requests may share. What these requests
  /// computed on them in earlier steps depends on the earlier content. The blocks are those of the
  /// tokens [first, end), as far as `added` has not just brought them.
  void void_shared(const Request& writer, GroupBlocks added, std::uint32_t first,
                   std::uint32_t end);
  /// The position, from the last proven one to `end`, up to which the group allows the request's
  /// prefix to be proven.
  [[nodiscard]] std::uint32_t end_by_blocks(const Request& request, const Proof& proof,
                                            GroupId group, std::uint32_t end) const;
  /// The same for a group of states.
  [[nodiscard]] std::uint32_t end_by_state(const Request& request, const Proof& proof,
                                           GroupId group, std::uint32_t end) const;
  /// The first position to be proven that lies inside a block whose first tokens the request has
  /// found and whose other tokens it has computed, or kNone. Such a block can only be proven as a
  /// whole.
  [[nodiscard]] std::uint32_t half_found_from(const Proof& proof, GroupId group) const;
  /// The first block of the group that the request has computed completely.
  [[nodiscard]] std::uint32_t first_covered_of(const Proof& proof, GroupId group) const {
    const std::uint32_t block_tokens = groups_.block_tokens(group);
    return proof.from / block_tokens + (proof.from % block_tokens == 0 ? 0 : 1);
  }
  /// Whether the group's block holds what its key says, provided that the blocks before it do.
  [[nodiscard]] bool is_right_at(const Request& request, const Proof& proof, GroupId group,
                                 std::uint32_t at) const;
  /// Proves the blocks that the request has computed, up to position `end` of its proven prefix.
  void prove_computed(const Request& request, const Proof& proof, GroupId group, std::uint32_t end);
  /// Number of blocks of the group that hold the first `num_tokens` tokens.
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
  OtherLoads other_loads_;
  ProvenBlocks proven_;
  PerRequest<Proof> proofs_;
  std::vector<const Request*> in_doubt_;  ///< Some of their blocks are not proven yet.
};

}  // namespace kvferry::connector
