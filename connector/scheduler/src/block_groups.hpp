// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/engine_view.hpp"
#include "kvferry/connector/scheduler/scheduler_options.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace kvferry::connector {

/// The KV cache groups of an engine, with what the scheduler side has to know about each: which
/// blocks its next token needs, which slots hold them, and where they are. The other parts ask
/// these questions and never ask for a kind of group. So a new kind is a new TokenReach with its
/// answers here.
///
/// A *position* counts the engine's hashes from a request's first one, so it means the same tokens
/// in every group. A *block* of a group covers one or several positions. Immutable; any thread may
/// read it.
class BlockGroups {
 public:
  BlockGroups(std::span<const KvGroup> groups, std::uint32_t hash_tokens)
      : groups_(groups.begin(), groups.end()), hash_tokens_(hash_tokens) {
    for (GroupId group; has(group); group = group.next()) {
      hit_length_ = std::lcm(hit_length_, at(group).hashes_per_block);
      if (!at(group).reach.is_none()) ids_.push_back(group);
    }
    const auto is_finer = [this](GroupId one, GroupId other) {
      return block_length(one) < block_length(other);
    };
    if (!ids_.empty()) finest_ = *std::min_element(ids_.begin(), ids_.end(), is_finer);
  }

  /// The number of all groups of the engine. Each has a table.
  [[nodiscard]] std::size_t size() const { return groups_.size(); }
  /// The groups whose blocks are kept, in the engine's order; at least one.
  [[nodiscard]] std::span<const GroupId> ids() const { return ids_; }
  /// The kept group whose blocks cover the fewest positions; the first of several.
  [[nodiscard]] GroupId finest() const { return finest_; }
  /// Tokens of one position.
  [[nodiscard]] std::uint32_t hash_tokens() const { return hash_tokens_; }
  /// Positions of one block.
  [[nodiscard]] std::uint32_t block_length(GroupId group) const {
    return at(group).hashes_per_block;
  }
  [[nodiscard]] std::uint32_t block_tokens(GroupId group) const {
    return hash_tokens_ * block_length(group);
  }
  /// Number of blocks of the group that end at that position or before it.
  [[nodiscard]] std::uint32_t num_complete(GroupId group, std::uint32_t position) const {
    const std::uint32_t length = block_length(group);
    return length == 1 ? position : position / length;  // In most models the length is one.
  }
  /// Number of blocks of the group that begin before that position.
  [[nodiscard]] std::uint32_t num_begun(GroupId group, std::uint32_t position) const {
    return num_complete(group, position + block_length(group) - 1);
  }
  /// Whether a block of the group ends with that position.
  [[nodiscard]] bool ends_with(GroupId group, std::uint32_t position) const {
    const std::uint32_t length = block_length(group);
    return length == 1 || (position + 1) % length == 0;
  }
  /// The last position up to that one at which a block ends in every group. Groups that are not
  /// kept count too, because they do for the engine's hits. Loads end there.
  [[nodiscard]] std::uint32_t align(std::uint32_t position) const {
    return position / hit_length_ * hit_length_;
  }
  [[nodiscard]] SlabClassId class_of(GroupId group) const { return at(group).slab_class; }
  [[nodiscard]] bool has(GroupId group) const { return group.value() < groups_.size(); }

  /// Whether the next token needs every block before it. The other groups drop old blocks, and have
  /// null blocks in their tables instead.
  [[nodiscard]] bool needs_all(GroupId group) const { return at(group).reach.is_all(); }
  /// Whether a block holds the state at its end, and no other block of the group is needed with it.
  [[nodiscard]] bool has_states(GroupId group) const { return at(group).reach.is_state(); }
  /// Whether the engine says in which block it leaves a state (SchedulerEngine::on_state()),
  /// because the table does not show it.
  [[nodiscard]] bool is_told(GroupId group) const { return at(group).reach.is_told(); }
  /// Whether a block has its content after the forward of the step that completes it. Otherwise it
  /// has it after the step.
  [[nodiscard]] bool settles_in_step(GroupId group) const {
    return at(group).reach.settles_in_step();
  }

  /// The first block that the engine keeps when the first `num_computed_tokens` are computed. No
  /// token sees an older block any more, and the engine may have given it to another request.
  [[nodiscard]] std::uint32_t first_kept(GroupId group, std::uint32_t num_computed_tokens) const {
    return at(group).reach.first_seen(num_computed_tokens) / block_tokens(group);
  }
  /// Blocks [first, last) of a group.
  struct Range {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    [[nodiscard]] std::uint32_t size() const { return last - first; }
  };
  /// The blocks that the token at position `end` needs and that do not end before position `first`,
  /// that is the blocks of a load of [first, end).
  [[nodiscard]] Range needed(GroupId group, std::uint32_t first, std::uint32_t end) const {
    return {std::max(num_complete(group, first), first_kept(group, end * hash_tokens_)),
            num_begun(group, end)};
  }
  /// Blocks before those of a window that the engine's own cache retains. A load that ends with the
  /// retained blocks needs them too (KvGroup::unseen_tokens).
  [[nodiscard]] std::uint32_t num_unseen(GroupId group) const {
    const std::uint32_t unseen = at(group).unseen_tokens;
    if (unseen == 0) return 0;
    const std::uint32_t tokens = block_tokens(group);
    // This is the window at any block's end that is far from the first block.
    const std::uint32_t end = std::numeric_limits<std::uint32_t>::max() / tokens * tokens;
    const std::uint32_t first = at(group).reach.first_seen(end);
    return (first + unseen) / tokens - first / tokens;
  }
  /// The most positions that a load for a request of this many tokens may bring. The engine always
  /// computes the last token, because it needs its logits: after a load of all tokens it steps back
  /// by that one. A load may bring them all if the last token needs only blocks of the load: it
  /// sees no block that the engine has dropped by then, no state from before it, and no group that
  /// is not kept, of which a load brings nothing.
  [[nodiscard]] std::uint32_t num_loadable(std::uint32_t num_tokens) const {
    const std::uint32_t num_positions = num_tokens / hash_tokens_;
    if (num_positions == 0 || num_tokens % hash_tokens_ != 0) return num_positions;
    const bool has_all = ids_.size() == size();
    const bool may_step_back = has_all && std::all_of(ids_.begin(), ids_.end(), [&](GroupId group) {
                                 return !has_states(group) && first_kept(group, num_tokens - 1) ==
                                                                  first_kept(group, num_tokens);
                               });
    return may_step_back ? num_positions : num_positions - 1;
  }
  /// Calls `visit` with ranges of blocks. Together they cover those of `blocks` that are needed by
  /// a load that ends at the next multiple of `interval` positions after the block, or with it.
  /// `interval` is rounded to positions at which a block ends in every group.
  template <class Visit>
  void for_each_interval(GroupId group, Range blocks, std::uint32_t interval, Visit visit) const {
    const std::uint32_t step = std::max(align(interval), hit_length_);
    const std::uint32_t length = block_length(group);
    const std::uint32_t first_end = ((blocks.first + 1) * length + step - 1) / step * step;
    for (std::uint32_t end = first_end; end < blocks.last * length + step; end += step) {
      const Range at_end = needed(group, 0, end);
      visit(Range{std::max(at_end.first, num_complete(group, end - step)), at_end.last});
    }
  }
  /// Whether the block only stands for a block that no token sees any more.
  [[nodiscard]] bool is_null(GroupId group, BlockId block) const {
    return !needs_all(group) && block == kNullBlock;
  }
  /// Whether a load may leave out a needed block that is a null block for the engine. A window may
  /// be needed in part, but without its state everything after a state would be wrong.
  [[nodiscard]] bool may_leave_out(GroupId group) const { return !has_states(group); }

 private:
  [[nodiscard]] const KvGroup& at(GroupId group) const { return groups_[group.value()]; }

  std::vector<KvGroup> groups_;
  std::vector<GroupId> ids_;
  GroupId finest_;
  std::uint32_t hash_tokens_;
  std::uint32_t hit_length_ = 1;  ///< In positions.
};

}  // namespace kvferry::connector
