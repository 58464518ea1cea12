// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/hashed_lists.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace kvferry::cpu_tier {

/// What clients have promised to need again, and what it has won and cost to believe them.
///
/// A block whose turn to leave has come, and that is promised, *stays*: the next one leaves in its
/// place. A block that is said to be of no more use leaves *early*. Either takes a hit away if the
/// block that left is asked for while it would still be there, and a stay wins one if the block
/// that stayed is loaded. Hits are the currency of an account: blocks that are offered pay in
/// kAskedPerCredit-ths of one, a hit that was won pays in one, a hit that was lost takes one out.
/// No more blocks stay, or have left early, than the account has. So all hits that are lost are
/// paid for: by hits that were won, or by 1 of kAskedPerCredit blocks that were asked for.
///
/// Which blocks would be there without promises is known for LRU alone: those of the last turns, as
/// many as blocks stay. So promises are believed while that is the rule.
///
/// Memory: nothing before the first promise; then 28 to 32 bytes for each block that may stay, and
/// some 50 for each promised key. One thread at a time. What is promised first may throw
/// std::bad_alloc; nothing changed then.
class PromiseLedger {
 public:
  /// 0.1 %.
  static constexpr std::int64_t kAskedPerCredit = 1024;
  /// How deep in its prompt a block lies, in powers of two: the deepest stays are given up first,
  /// because a prefix is of use without its tail and a tail is of none without its prefix.
  static constexpr std::uint8_t kMaxDepth = 15;
  [[nodiscard]] static std::uint8_t depth_of(std::size_t position);

  /// Of `max_share` of the slots at most; 0: no promise is believed.
  PromiseLedger(float max_share, std::uint32_t max_slots);

  void resize(std::uint32_t num_slots);
  /// Whether anything was promised, or left early, since the ledger was made.
  [[nodiscard]] bool is_used() const { return departed_.has_value(); }
  /// From now on. promise() does so.
  void begin_use();

  // ---- promises ----

  /// One promise more of a key. A later one says how deep it lies.
  void promise(std::uint64_t hash, std::uint8_t depth);
  /// One promise less; whether it was the last one. Nothing for a key without one.
  bool end(std::uint64_t hash);
  /// 0: it is not promised.
  [[nodiscard]] std::uint8_t depth(std::uint64_t hash) const {
    const auto found = promised_.find(hash);
    return found == promised_.end() ? 0 : found->second.depth;
  }
  [[nodiscard]] bool any() const { return !promised_.empty(); }
  [[nodiscard]] std::size_t num_promised() const { return promised_.size(); }

  // ---- the account ----

  /// Most blocks that may stay now.
  [[nodiscard]] std::uint32_t max_stays() const;
  /// So many blocks were offered.
  void asked(std::size_t count);
  /// So many blocks were loaded that could not have been if none had stayed.
  void won(std::uint32_t count);
  /// A block that the tier does not hold was offered; whether it would hold it without promises.
  [[nodiscard]] bool missed(std::uint64_t hash, std::uint32_t num_turns);
  /// So many blocks could not be loaded for want of those.
  void lost(std::uint32_t count);
  /// The tier holds a block again.
  void stored(std::uint64_t hash);
  /// A block left whose turn was the `turn`-th one, of `num_turns` so far; `num_stays` stay.
  void left_in_turn(std::uint64_t hash, std::uint32_t turn, std::uint32_t num_turns,
                    std::uint32_t num_stays);
  /// A block left early.
  void left_early(std::uint64_t hash, std::uint32_t num_turns);
  /// How many more blocks may be made to leave early, `num_waiting` of which wait for it.
  [[nodiscard]] std::uint32_t room_for_early(std::uint32_t num_stays,
                                             std::uint32_t num_waiting) const;

  /// The account, in hits.
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

  void remember(std::uint64_t hash, std::size_t list, std::uint32_t num_turns);
  /// Forgets those that had their turn `count` turns ago, or earlier.
  void forget_old(std::size_t list, std::uint32_t num_turns, std::uint32_t count);

  float max_share_;
  std::uint32_t max_slots_;
  std::uint32_t num_slots_ = 0;
  std::unordered_map<std::uint64_t, Promised> promised_;
  /// Blocks that would still be there without promises.
  std::optional<HashedLists> departed_;
  std::uint32_t max_departed_ = 0;
  std::int64_t balance_ = 0;  ///< kAskedPerCredit-ths of a hit.
  std::int64_t max_balance_ = 0;
  std::uint64_t num_won_ = 0;
  std::uint64_t num_lost_ = 0;
  std::uint64_t num_early_ = 0;
};

}  // namespace kvferry::cpu_tier
