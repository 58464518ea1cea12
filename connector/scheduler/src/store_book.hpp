// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/wire/owner.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "backlog.hpp"
#include "decision_journal.hpp"
#include "open_transfer.hpp"
#include "overdue.hpp"
#include "rank_patience.hpp"
#include "rank_register.hpp"
#include "rank_roll.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// The key of the block before a block, if there is one.
using Predecessor = std::optional<cpu_tier::BlockKey>;

/// The stores under way. Each owns its slots from the plan until every rank has ended it (G1: it
/// owns no block). What the rings hold and took lately limits how much may still be planned. It
/// counts bytes, because thousands of the smallest blocks fit where a few of the largest do. Called
/// by the scheduler's thread alone.
class StoreBook {
 public:
  StoreBook(cpu_tier::Tier& tier, Backlog& backlog, std::uint32_t world_size)
      : tier_(tier), backlog_(backlog), world_size_(world_size) {}
  ~StoreBook();
  StoreBook(const StoreBook&) = delete;
  StoreBook& operator=(const StoreBook&) = delete;

  /// Every rank has registered.
  void set_ring(RingRoom ring);
  /// Whether stores can be planned: every rank has registered, and has a staging ring.
  [[nodiscard]] bool is_on() const { return ring_ && ring_->num_bytes > 0; }
  /// From now on no store is planned. Those under way continue. Call it only after every rank has
  /// registered.
  void turn_off() { ring_->num_bytes = 0; }
  /// Whether no store will be planned: a rank has no staging ring, or turn_off() was called.
  [[nodiscard]] bool is_off() const { return ring_ && ring_->num_bytes == 0; }

  /// Bytes worth planning now, as RingRoom counts them: the room that the ring is known to have,
  /// what it took in the last step (it drains while the step runs), and some more, so that the
  /// ranks limit the rate and not the plan.
  [[nodiscard]] std::uint64_t plan_limit() const;
  /// It is told how stores end. It outlives this object; null: there is none.
  void set_journal(DecisionJournal* journal) { journal_ = journal; }
  /// The bytes of that which a block of the class takes; 1 unless is_on().
  [[nodiscard]] std::uint64_t block_bytes(SlabClassId slab_class) const {
    return is_on() ? ring_->block_bytes[slab_class.value()] : 1;
  }

  /// Plans a store of `blocks`, which have these keys, into `slots` (one each, in order), sent at
  /// `stamp`. `predecessors` are the keys before them in their prefixes: none, one for a part of
  /// one prefix, or one per block for blocks of different prefixes.
  [[nodiscard]] StoreOrder plan(TransferId transfer, Owner owner, SlabClassId slab_class,
                                StoreReadiness readiness, std::span<const BlockId> blocks,
                                std::span<const cpu_tier::BlockKey> keys,
                                cpu_tier::WritableSlots slots,
                                std::span<const Predecessor> predecessors,
                                RankPatience::Stamp stamp);

  /// A store of no block. Every rank answers that it has executed the step, and nothing more.
  [[nodiscard]] StoreOrder plan_witness(TransferId transfer, Owner owner,
                                        RankPatience::Stamp stamp) {
    return plan(transfer, owner, SlabClassId(0), StoreReadiness::kAfterForward, {}, {}, {}, {},
                stamp);
  }
  /// Witnesses that every rank has answered since the last call.
  [[nodiscard]] std::vector<TransferId> take_witnesses() { return std::exchange(witnesses_, {}); }

  /// Throws ProtocolError if a rank reports more blocks than a store has, or ends a store without a
  /// report of how much it gathered: the store would wait for that report, but no rank would owe
  /// it. Every report fits a transfer that is not under way.
  void expect_fits(const StepReport& report) const;
  /// Marks what ranks reported, if it fits. False for a transfer that is not under way, or if the
  /// rank has reported it before.
  [[nodiscard]] bool mark_gathered(RankId rank, const StoreGathered& gathered);
  [[nodiscard]] bool mark_ended(RankId rank, const TransferEnded& ended);
  /// Settles everything that the marks since the last call decided.
  void settle();

  /// Aborts all stores in flight. Their keys are forgotten now, and their slots return when the
  /// ranks are done. Returns the stores.
  [[nodiscard]] std::vector<TransferId> abort_all();

  /// Aborts the stores in flight that name one of the blocks, in the way of abort_all().
  [[nodiscard]] std::vector<TransferId> abort_stores_of(std::span<const BlockId> blocks);

  /// Aborts the stores in flight of blocks that these weights computed, in the way of abort_all().
  [[nodiscard]] std::vector<TransferId> abort_stores_of(WeightsId weights);

  /// Adds the stores about which ranks have been silent for too long, and these ranks.
  void add_overdue(const RankPatience& patience, std::optional<Overdue>& found) const;
  /// The rank is lost: the slots of every store that it has not ended are in doubt. They are not
  /// used until the rank ends the stores after all.
  void quarantine(RankId rank);

  [[nodiscard]] std::size_t num_in_flight() const { return stores_.size(); }
  /// The oldest stores, so many at most.
  [[nodiscard]] std::vector<OpenTransfer> oldest(std::size_t most) const;
  /// Slots held, by state.
  struct Held {
    std::size_t num_writable = 0;
    std::size_t num_aborted = 0;
    std::size_t num_quarantined = 0;
  };
  [[nodiscard]] Held held() const;
  [[nodiscard]] std::uint64_t num_stored() const { return num_stored_; }
  [[nodiscard]] std::uint64_t num_skipped() const { return num_skipped_; }
  [[nodiscard]] std::uint64_t num_failed() const { return num_failed_; }

 private:
  struct Store {
    Owner owner;
    std::vector<BlockId> blocks;
    std::vector<Predecessor> predecessors;
    cpu_tier::WritableSlots writable;  ///< The slots of the first blocks.
    cpu_tier::AbortedSlots
        aborted;  ///< Of the blocks after them, as far as a rank may still write them.
    cpu_tier::QuarantinedSlots quarantined;  ///< All of them, once a silent rank was lost.
    RankRoll roll;
    RankPatience::Stamp sent{};
    std::uint64_t block_bytes = 0;  ///< Per block, in a ring.
    std::uint32_t ring_claim = 0;   ///< Blocks that a ring holds of it, or may hold later.
    bool was_aborted = false;
    bool gathers_settled = false;
  };
  using Stores = std::map<TransferId, Store>;

  /// Returns how many of its bytes the fullest ring took.
  [[nodiscard]] std::uint64_t settle_gathers(Store& store);
  void settle_end(TransferId transfer, Store& store);
  void commit(Store& store);
  void abort(Store& store);
  /// Aborts the stores for which `is_one` is true, and returns them.
  template <class IsOne>
  std::vector<TransferId> abort_if(IsOne is_one);

  cpu_tier::Tier& tier_;
  Backlog& backlog_;
  std::uint32_t world_size_;
  std::optional<RingRoom> ring_;
  std::uint64_t ring_claims_ = 0;     ///< Bytes.
  std::uint64_t recently_taken_ = 0;  ///< Bytes.
  Stores stores_;
  DecisionJournal* journal_ = nullptr;
  std::vector<TransferId> marked_;
  std::vector<TransferId> witnesses_;
  std::uint64_t num_stored_ = 0;
  std::uint64_t num_skipped_ = 0;
  std::uint64_t num_failed_ = 0;
};

}  // namespace kvferry::connector
