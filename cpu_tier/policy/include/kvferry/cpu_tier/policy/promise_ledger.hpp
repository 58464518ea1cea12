// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/hashed_lists.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace kvferry::cpu_tier {

/// The keys that clients have promised to need again, and an account of the hits that promises have
/// won and lost.
///
/// A promised block *stays* when it would be evicted, and the next block leaves instead. A block
/// that a client needs no more leaves *early*. Both lose a hit if the block that left is asked for
/// while it would still be there otherwise. A stay wins a hit if the block that stayed is loaded.
/// The account counts hits: each offered block adds 1/kAskedPerCredit, each hit that was won adds
/// 1, and each hit that was lost subtracts 1. The number of blocks that stay, or have left early,
/// is limited to the balance. So every lost hit is paid for, by a hit that was won, or by
/// kAskedPerCredit blocks that were asked for.
///
/// Only for LRU is it known which blocks would be there without promises: those that left in the
/// last turns, as many as blocks stay. So promises have an effect only while LRU is the rule.
///
/// Memory: nothing before the first promise; then 28 to 32 bytes for each block that can stay, and
/// about 50 for each promised key. Used by one thread at a time. The first promise can throw
/// std::bad_alloc; then nothing has changed.
class PromiseLedger {
 public:
  /// 0.1 %.
  static constexpr std::int64_t kAskedPerCredit = 1024;
  /// The depth of a block in its prompt, in powers of two. The deepest blocks are given up first,
  /// because a prefix is useful without its tail, but a tail is useless without its prefix.
  static constexpr std::uint8_t kMaxDepth = 15;
  [[nodiscard]] static std::uint8_t depth_of(std::size_t position);

  /// `max_share`: largest share of the slots whose blocks can stay or have left early; 0: promises
  /// have no effect.
  PromiseLedger(float max_share, std::uint32_t max_slots);

  void resize(std::uint32_t num_slots);
  /// Whether anything was promised, or left early, since the ledger was made.
  [[nodiscard]] bool is_used() const { return departed_.has_value(); }
  /// Allocates the ledger's memory, if that has not happened. promise() calls it.
  void begin_use();

  // ---- promises ----

  /// Adds one promise to a key. The depth of the latest promise counts.
  void promise(std::uint64_t hash, std::uint8_t depth);
  /// Removes one promise from a key, if it has any. Returns whether that was the last one.
  bool end(std::uint64_t hash);
  /// The depth of a promised key; 0: the key is not promised.
  [[nodiscard]] std::uint8_t depth(std::uint64_t hash) const {
    const auto found = promised_.find(hash);
    return found == promised_.end() ? 0 : found->second.depth;
  }
  [[nodiscard]] bool any() const { return !promised_.empty(); }
  [[nodiscard]] std::size_t num_promised() const { return promised_.size(); }

  // ---- the account ----

  /// Most blocks that can stay now.
  [[nodiscard]] std::uint32_t max_stays() const;
  /// `count` blocks were offered.
  void asked(std::size_t count);
  /// `count` blocks were loaded only because blocks had stayed.
  void won(std::uint32_t count);
  /// A block was offered that the tier does not hold. Returns whether the tier would hold it
  /// without promises.
  [[nodiscard]] bool missed(std::uint64_t hash, std::uint32_t num_turns) {
    return departed_ && departed_->size() > 0 && has_missed(hash, num_turns);
  }
  /// `count` blocks could not be loaded because such blocks were missing.
  void lost(std::uint32_t count);
  /// The tier holds a block again.
  void stored(std::uint64_t hash);
  /// A block was evicted in its turn, number `turn` of `num_turns` turns so far. `num_stays` blocks
  /// stay now.
  void left_in_turn(std::uint64_t hash, std::uint32_t turn, std::uint32_t num_turns,
                    std::uint32_t num_stays);
  /// A block left early.
  void left_early(std::uint64_t hash, std::uint32_t num_turns);
  /// How many more blocks can leave early, if `num_stays` stay and `num_waiting` wait to leave
  /// early.
  [[nodiscard]] std::uint32_t room_for_early(std::uint32_t num_stays,
                                             std::uint32_t num_waiting) const;

  /// The balance of the account, in hits.
  [[nodiscard]] std::uint64_t num_credits() const {
    return balance_ <= 0 ? 0 : static_cast<std::uint64_t>(balance_ / kAskedPerCredit);
  }
  [[nodiscard]] std::uint64_t num_won() const { return num_won_; }
  [[nodiscard]] std::uint64_t num_lost() const { return num_lost_; }
  [[nodiscard]] std::uint64_t num_early() const { return num_early_; }

 private:
  struct Promised {
    std::uint32_t count = 0;
    std::uint8_t depth = 0;
  };
  // The lists of departed_.
  static constexpr std::size_t kInTurn = 0;
  static constexpr std::size_t kEarly = 1;

  [[nodiscard]] bool has_missed(std::uint64_t hash, std::uint32_t num_turns);
  void remember(std::uint64_t hash, std::size_t list, std::uint32_t num_turns);
  /// Forgets the blocks of a list that had their turn `count` turns ago or earlier.
  void forget_old(std::size_t list, std::uint32_t num_turns, std::uint32_t count);

  float max_share_;
  std::uint32_t max_slots_;
  std::uint32_t num_slots_ = 0;
  std::unordered_map<std::uint64_t, Promised> promised_;
  /// Blocks that the tier would still hold without promises.
  std::optional<HashedLists> departed_;
  std::uint32_t max_departed_ = 0;
  std::int64_t balance_ = 0;  ///< In units of 1/kAskedPerCredit hit.
  std::int64_t max_balance_ = 0;
  std::uint64_t num_won_ = 0;
  std::uint64_t num_lost_ = 0;
  std::uint64_t num_early_ = 0;
};

}  // namespace kvferry::cpu_tier
