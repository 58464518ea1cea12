// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/engine_view.hpp"
#include "kvferry/connector/scheduler/scheduler_options.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::connector {

/// The KV cache groups of an engine, by what the scheduler side has to know of one: which blocks
/// its next token needs, which slots hold them, and where they are. The other parts ask these
/// questions and never for a kind of group, so that a new kind is a TokenReach and its answers
/// here.
///
/// Positions count blocks from a request's first. Immutable: any thread may ask.
class BlockGroups {
 public:
  BlockGroups(std::span<const KvGroup> groups, std::uint32_t block_tokens)
      : groups_(groups.begin(), groups.end()), block_tokens_(block_tokens) {
    for (GroupId group; has(group); group = group.next()) ids_.push_back(group);
  }

  [[nodiscard]] std::size_t size() const { return groups_.size(); }
  /// All groups, in the engine's order.
  [[nodiscard]] std::span<const GroupId> ids() const { return ids_; }
  [[nodiscard]] std::uint32_t block_tokens() const { return block_tokens_; }
  [[nodiscard]] SlabClassId class_of(GroupId group) const { return at(group).slab_class; }
  [[nodiscard]] bool has(GroupId group) const { return group.value() < groups_.size(); }

  /// The next token needs every block before it. The other groups drop old blocks, and have null
  /// blocks in their tables instead.
  [[nodiscard]] bool needs_all(GroupId group) const { return at(group).reach.is_all(); }
  /// A block holds the state at its end, and no other block of the group is needed with it. The
  /// engine says in which block it leaves a state (SchedulerEngine::on_state()); the table does not
  /// tell.
  [[nodiscard]] bool has_states(GroupId group) const { return at(group).reach.is_state(); }
  /// Whether a block has its content after the forward of the step that completes it. Otherwise it
  /// has it after the step.
  [[nodiscard]] bool settles_in_step(GroupId group) const {
    return at(group).reach.settles_in_step();
  }

  /// The first block that the engine keeps when the first `num_computed_tokens` are computed. No
  /// token sees an older one any more, and the engine may have given it to another request.
  [[nodiscard]] std::uint32_t first_kept(GroupId group, std::uint32_t num_computed_tokens) const {
    return at(group).reach.first_seen(num_computed_tokens) / block_tokens_;
  }
  /// The first block that the next token needs of `length` blocks after the first `num_local`;
  /// counted from `num_local` on.
  [[nodiscard]] std::uint32_t first_needed(GroupId group, std::uint32_t num_local,
                                           std::uint32_t length) const {
    const std::uint32_t first = first_kept(group, (num_local + length) * block_tokens_);
    return first > num_local ? first - num_local : 0;
  }
  /// Whether the block only stands for one that no token sees any more.
  [[nodiscard]] bool is_null(GroupId group, BlockId block) const {
    return !needs_all(group) && block == kNullBlock;
  }
  /// Whether a load may leave out a needed block that the engine has as a null block: a window may
  /// be needed in part. A state that goes nowhere leaves what follows it wrong.
  [[nodiscard]] bool may_leave_out(GroupId group) const { return !has_states(group); }

 private:
  [[nodiscard]] const KvGroup& at(GroupId group) const { return groups_[group.value()]; }

  std::vector<KvGroup> groups_;
  std::vector<GroupId> ids_;
  std::uint32_t block_tokens_;
};

}  // namespace kvferry::connector
