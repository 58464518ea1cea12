// SPDX-License-Identifier: Apache-2.0
#include "store_book.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvferry::connector {

StoreBook::~StoreBook() {
  // A rank that has not ended a store may write its slots for as long as the rank lives. A private
  // tier ends with this engine, so nothing reuses the slots. In a shared tier a peer would.
  for (auto& [transfer, store] : stores_) {
    tier_.leave_behind(tier_.abort(std::move(store.writable)));
    tier_.leave_behind(std::move(store.aborted));
    tier_.leave_behind(std::move(store.quarantined));
  }
}

void StoreBook::set_ring(RingRoom ring) { ring_ = std::move(ring); }

std::uint64_t StoreBook::plan_limit() const {
  if (!is_on()) return 0;
  const std::uint64_t whole = ring_->num_bytes;
  const std::uint64_t room = whole > ring_claims_ ? whole - ring_claims_ : 0;
  // Each step plans an eighth of the ring more. So a ring that drains faster is found within a few
  // steps, and a stuck ring costs little.
  const auto largest = std::max_element(ring_->block_bytes.begin(), ring_->block_bytes.end());
  return room + recently_taken_ + whole / 8 + 8 * *largest;
}

StoreOrder StoreBook::plan(TransferId transfer, Owner owner, SlabClassId slab_class,
                           StoreReadiness readiness, std::span<const BlockId> blocks,
                           std::span<const cpu_tier::BlockKey> keys, cpu_tier::WritableSlots slots,
                           std::span<const Predecessor> predecessors, RankPatience::Stamp stamp) {
  KVFERRY_CHECK(blocks.size() == slots.size() && blocks.size() == keys.size(),
                "a store's blocks, keys and slots do not pair up");
  StoreOrder order{transfer, owner, slab_class, readiness, {}};
  order.blocks.reserve(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    order.blocks.push_back({blocks[i], slots.slots()[i], keys[i].mixed()});
  }
  const auto num_blocks = static_cast<std::uint32_t>(blocks.size());
  Store store{owner,
              {blocks.begin(), blocks.end()},
              {predecessors.begin(), predecessors.end()},
              std::move(slots),
              {},
              {},
              RankRoll(world_size_),
              stamp};
  store.block_bytes = blocks.empty() ? 0 : block_bytes(slab_class);
  store.ring_claim = num_blocks;
  ring_claims_ += num_blocks * store.block_bytes;
  const bool fresh = stores_.emplace(transfer, std::move(store)).second;
  KVFERRY_CHECK(fresh, "transfer " + std::to_string(transfer.value()) + " planned twice");
  return order;
}

void StoreBook::expect_fits(const StepReport& report) const {
  const auto refuse = [&report](TransferId transfer, const std::string& what) {
    throw ProtocolError("rank " + std::to_string(report.rank.value()) + what + " transfer " +
                        std::to_string(transfer.value()) +
                        "; scheduler and workers must run the same kvferry version");
  };
  for (const StoreGathered& gathered : report.gathered) {
    const auto found = stores_.find(gathered.transfer);
    if (found == stores_.end() || gathered.num_gathered <= found->second.blocks.size()) continue;
    refuse(gathered.transfer, " gathered " + std::to_string(gathered.num_gathered) + " of the " +
                                  std::to_string(found->second.blocks.size()) + " blocks of");
  }
  for (const TransferEnded& ended : report.stores) {
    const auto found = stores_.find(ended.transfer);
    if (found == stores_.end() || found->second.roll.has_gathered(report.rank)) continue;
    const auto is_its = [&ended](const StoreGathered& one) {
      return one.transfer == ended.transfer;
    };
    if (std::any_of(report.gathered.begin(), report.gathered.end(), is_its)) continue;
    refuse(ended.transfer, " ended without a report of how much it gathered of,");
  }
}

bool StoreBook::mark_gathered(RankId rank, const StoreGathered& gathered) {
  const auto found = stores_.find(gathered.transfer);
  if (found == stores_.end()) return false;
  if (!found->second.roll.gathered(rank, gathered.num_gathered)) return false;
  marked_.push_back(gathered.transfer);
  return true;
}

bool StoreBook::mark_ended(RankId rank, const TransferEnded& ended) {
  const auto found = stores_.find(ended.transfer);
  if (found == stores_.end()) return false;
  if (!found->second.roll.ended(rank, ended.outcome)) return false;
  marked_.push_back(ended.transfer);
  return true;
}

void StoreBook::settle() {
  std::sort(marked_.begin(), marked_.end());
  marked_.erase(std::unique(marked_.begin(), marked_.end()), marked_.end());
  std::optional<std::uint64_t> taken;
  // Newest first, so that the backlog's head has the returned blocks in the order oldest first.
  for (auto it = marked_.rbegin(); it != marked_.rend(); ++it) {
    const auto found = stores_.find(*it);
    Store& store = found->second;
    if (store.roll.all_gathered() && !store.gathers_settled) {
      taken = taken.value_or(0) + settle_gathers(store);
    }
    if (store.roll.all_gathered() && store.roll.all_ended()) {
      if (store.blocks.empty()) witnesses_.push_back(*it);
      settle_end(*it, store);
      stores_.erase(found);
    }
  }
  if (taken) recently_taken_ = *taken;
  marked_.clear();
}

std::uint64_t StoreBook::settle_gathers(Store& store) {
  store.gathers_settled = true;
  const std::uint32_t least = store.roll.least_gathered();
  const std::uint32_t most = store.roll.most_gathered();
  const std::uint64_t taken = most * store.block_bytes;
  ring_claims_ -= store.ring_claim * store.block_bytes - taken;
  store.ring_claim = most;
  if (store.was_aborted) return taken;
  // A block that one rank skipped is stored on no rank. It is forgotten here and offered again, and
  // its slot is free as soon as no rank writes it.
  for (std::size_t i = store.blocks.size(); i > least; --i) {
    backlog_.push_front({store.blocks[i - 1],
                         tier_.key(store.writable.slab_class(), store.writable.slots()[i - 1])});
    ++num_skipped_;
    if (journal_ != nullptr) {
      const cpu_tier::BlockKey key =
          tier_.key(store.writable.slab_class(), store.writable.slots()[i - 1]);
      journal_->skipped(recorder::Skip::kRingFull, store.owner.request, {&key, 1});
    }
  }
  store.aborted = tier_.abort(store.writable.split_off(least));
  tier_.release(store.aborted.split_off(most - least));
  return taken;
}

void StoreBook::settle_end(TransferId transfer, Store& store) {
  if (journal_ != nullptr) {
    const std::size_t num_stored = store.roll.all_done() ? store.writable.size() : 0;
    journal_->store_ended(transfer, num_stored, store.blocks.size() - store.writable.size(),
                          store.roll.any_failed());
  }
  ring_claims_ -= store.ring_claim * store.block_bytes;
  if (store.roll.all_done()) {
    num_stored_ += store.writable.size();
    commit(store);
  } else {
    if (store.roll.any_failed()) num_failed_ += store.writable.size();
    tier_.release(tier_.abort(std::move(store.writable)));
  }
  tier_.release(std::move(store.aborted));
  tier_.release(std::move(store.quarantined));
}

void StoreBook::commit(Store& store) {
  const std::vector<Predecessor>& predecessors = store.predecessors;
  if (predecessors.size() < store.blocks.size() || predecessors.size() == 1) {
    tier_.commit(std::move(store.writable), predecessors.empty() ? std::nullopt : predecessors[0]);
    return;
  }
  while (!store.writable.empty()) {
    const std::size_t last = store.writable.size() - 1;
    tier_.commit(store.writable.split_off(last), predecessors[last]);
  }
}

template <class IsOne>
std::vector<TransferId> StoreBook::abort_if(IsOne is_one) {
  std::vector<TransferId> aborted;
  for (auto& [transfer, store] : stores_) {
    if (!is_one(store)) continue;
    abort(store);
    aborted.push_back(transfer);
  }
  if (journal_ != nullptr) journal_->aborted(aborted);
  return aborted;
}

std::vector<TransferId> StoreBook::abort_all() {
  return abort_if([](const Store&) { return true; });
}

std::vector<TransferId> StoreBook::abort_stores_of(std::span<const BlockId> blocks) {
  return abort_if([&](const Store& store) {
    return !store.was_aborted &&
           std::find_first_of(store.blocks.begin(), store.blocks.end(), blocks.begin(),
                              blocks.end()) != store.blocks.end();
  });
}

std::vector<TransferId> StoreBook::abort_stores_of(WeightsId weights) {
  return abort_if([&](const Store& store) {
    // An aborted store has no keys any more. All keys of one store are of the same weights.
    if (store.was_aborted || store.writable.empty()) return false;
    return tier_.key(store.writable.slab_class(), store.writable.slots().front()).is_of(weights);
  });
}

void StoreBook::abort(Store& store) {
  store.was_aborted = true;
  store.aborted.merge(tier_.abort(std::move(store.writable)));
}

void StoreBook::add_overdue(const RankPatience& patience, std::optional<Overdue>& found) const {
  for (const auto& [transfer, store] : stores_) {
    // Stores are planned in the order of their numbers, so the others are younger.
    if (!patience.overdue(store.sent)) return;
    const auto describe = [id = transfer, &of = store] {
      return "store " + std::to_string(id.value()) + " of owner " + to_string(of.owner);
    };
    add_silent(patience, store.roll, transfer, store.sent, describe, found);
  }
}

void StoreBook::quarantine(RankId rank) {
  for (auto& [transfer, store] : stores_) {
    if (!store.roll.is_silent(rank)) continue;
    store.was_aborted = true;
    store.aborted.merge(tier_.abort(std::move(store.writable)));
    store.quarantined.merge(tier_.quarantine(std::move(store.aborted)));
  }
}

std::vector<OpenTransfer> StoreBook::oldest(std::size_t most) const {
  std::vector<OpenTransfer> found;
  for (const auto& [transfer, store] : stores_) {
    if (found.size() == most) break;
    const bool is_gathered = store.roll.all_gathered();
    OpenTransfer one{
        transfer,   store.owner, "", is_gathered ? "gathered" : "sent", store.blocks.size(),
        store.sent, {}};
    if (store.was_aborted) one.state = store.quarantined.empty() ? "aborted" : "quarantined";
    store.roll.for_each_silent([&one](RankId rank) { one.silent.push_back(rank); });
    found.push_back(std::move(one));
  }
  return found;
}

StoreBook::Held StoreBook::held() const {
  Held sum;
  for (const auto& [transfer, store] : stores_) {
    sum.num_writable += store.writable.size();
    sum.num_aborted += store.aborted.size();
    sum.num_quarantined += store.quarantined.size();
  }
  return sum;
}

}  // namespace kvferry::connector
