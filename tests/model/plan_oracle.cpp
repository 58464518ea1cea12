// SPDX-License-Identifier: Apache-2.0
#include "plan_oracle.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace kvferry::connector {

PlanOracle::PlanOracle(std::uint32_t num_chunks, std::uint32_t first_chunks,
                       std::vector<ClassUnits> classes)
    : num_chunks_(num_chunks), classes_(std::move(classes)) {
  for (std::uint32_t chunk = first_chunks; chunk < num_chunks; ++chunk) retired_.insert(chunk);
  for (const ClassUnits& of : classes_) {
    units_per_chunk_ = std::max(units_per_chunk_, of.slots_per_chunk * of.units_per_slot);
  }
}

std::uint32_t PlanOracle::first_unit(SlabClassId slab_class, SlotId slot) const {
  const ClassUnits& of = classes_.at(slab_class.value());
  return slot.value() / of.slots_per_chunk * units_per_chunk_ +
         slot.value() % of.slots_per_chunk * of.units_per_slot;
}

void PlanOracle::take_slots(Transfer& transfer, SlabClassId slab_class,
                            const std::vector<BlockSlot>& blocks, bool writes) const {
  EXPECT_FALSE(blocks.empty()) << "nothing is copied for nobody";
  const ClassUnits& of = classes_.at(slab_class.value());
  std::set<std::uint32_t> slots;
  for (const BlockSlot& pair : blocks) {
    const std::uint32_t slot = pair.slot.value();
    EXPECT_LT(slot, num_chunks_ * of.slots_per_chunk);
    EXPECT_FALSE(retired_.contains(slot / of.slots_per_chunk))
        << "slot " << slot << " is in a chunk that some rank may not have";
    EXPECT_TRUE(slots.insert(slot).second || !writes) << "one slot twice in a store";
    const std::uint32_t first = first_unit(slab_class, pair.slot);
    EXPECT_FALSE(writes && damaged_.contains(first)) << "damaged slot " << slot << " is written";
    for (std::uint32_t i = 0; i < of.units_per_slot; ++i) transfer.units.push_back(first + i);
    transfer.first_units.push_back(transfer.units.size());
  }
  const auto count = static_cast<std::uint32_t>(transfer.num_blocks());
  transfer.num_used[0] = transfer.num_used[1] = count;
}

void PlanOracle::check_memory(TransferId id, const Transfer& transfer, bool writes) const {
  const std::set<std::uint32_t> units(transfer.units.begin(), transfer.units.end());
  const auto check = [&](const std::map<TransferId, Transfer>& transfers, const char* what) {
    for (const auto& [other, in_flight] : transfers) {
      for (const std::uint32_t num_used : in_flight.num_used) {
        for (std::size_t i = 0; i < in_flight.first_units[num_used]; ++i) {
          // TensorRT-LLM#9056, LMCache#3130: memory written while it is written or read.
          EXPECT_FALSE(units.contains(in_flight.units[i]))
              << "transfer " << id.value() << " takes a slot's memory at " << in_flight.units[i]
              << " of " << what << " " << other.value();
        }
      }
    }
  };
  check(stores_, "store");
  if (writes) check(loads_, "load");
}

void PlanOracle::take_plan(const StepPlan& plan, const ToyPool& pool, const Step& step) {
  EXPECT_EQ(plan.seq, last_seq_.next());
  last_seq_ = plan.seq;
  num_transfers_ += plan.stores.size() + plan.loads.size() + plan.notices.size();
  for (const LoadOrder& order : plan.loads) {
    EXPECT_FALSE(order.parts.empty()) << "nothing is loaded for nobody";
    Transfer load;
    load.uid = step.load_uids.at(order.transfer);
    for (const ClassBlocks& part : order.parts) {
      take_slots(load, part.slab_class, part.blocks, false);
    }
    check_memory(order.transfer, load, false);
    EXPECT_TRUE(known_.insert(order.transfer).second);
    loads_.emplace(order.transfer, std::move(load));
  }
  take_stores(plan, pool, step);
  take_notices(plan, step);
  take_chunks(plan);
}

void PlanOracle::take_chunks(const StepPlan& plan) {
  for (const ChunkOrder& order : plan.chunks) {
    const std::uint32_t end = order.first.value() + order.count;
    EXPECT_LE(end, num_chunks_);
    const bool is_new =
        chunks_under_way_.emplace(order.first.value(), ChunksUnderWay{order, {}}).second;
    EXPECT_TRUE(is_new) << "another order for them is under way";
    for (std::uint32_t chunk = order.first.value(); chunk < end; ++chunk) {
      if (order.change == ChunkChange::kRestore) {
        EXPECT_TRUE(retired_.contains(chunk));
      } else {
        retired_.insert(chunk);
      }
    }
    // Whatever a rank may still touch of what was planned.
    for (const auto* transfers : {&stores_, &loads_}) {
      for (const auto& [id, transfer] : *transfers) {
        const std::uint32_t num_used = std::max(transfer.num_used[0], transfer.num_used[1]);
        for (std::size_t i = 0; i < transfer.first_units[num_used]; ++i) {
          const std::uint32_t chunk = transfer.units[i] / units_per_chunk_;
          EXPECT_FALSE(chunk >= order.first.value() && chunk < end)
              << "transfer " << id.value() << " has a slot in chunk " << chunk;
        }
      }
    }
  }
}

void PlanOracle::end_chunks(const ChunkEnded& ended, RankId rank) {
  const auto found = chunks_under_way_.find(ended.order.first.value());
  ASSERT_NE(found, chunks_under_way_.end()) << "an order that nobody gave has ended";
  ChunksUnderWay& under_way = found->second;
  EXPECT_EQ(under_way.order, ended.order);
  EXPECT_TRUE(under_way.ended_on.insert(rank.value()).second) << "ended twice on one rank";
  under_way.failed = under_way.failed || !ended.failure.empty();
  if (under_way.ended_on.size() < 2) return;
  if (ended.order.change == ChunkChange::kRetire) {
    num_retired += ended.order.count;
  } else if (!under_way.failed) {
    num_restored += ended.order.count;
    for (std::uint32_t i = 0; i < ended.order.count; ++i) {
      retired_.erase(ended.order.first.value() + i);
    }
  }
  chunks_under_way_.erase(found);
}

void PlanOracle::take_stores(const StepPlan& plan, const ToyPool& pool, const Step& step) {
  bool any_later = false;
  for (const StoreOrder& order : plan.stores) {
    Transfer store;
    take_slots(store, order.slab_class, order.blocks, true);
    check_memory(order.transfer, store, true);
    const bool early = order.readiness == StoreReadiness::kNow;
    EXPECT_FALSE(early && any_later) << "ready stores come first";
    any_later = any_later || !early;
    for (const BlockSlot& pair : order.blocks) {
      const std::uint32_t block = pair.block.value();
      if (early) {
        ++num_early_blocks;
        EXPECT_FALSE(step.written.contains(block))
            << "block " << block << " is written by this step and read before it";
      } else {
        EXPECT_FALSE(pool.is_free(block)) << "nobody owns it behind the forward";
        EXPECT_FALSE(step.given_up.contains(block)) << "its request has finished";
      }
    }
    EXPECT_TRUE(stores_.emplace(order.transfer, std::move(store)).second);
  }
}

void PlanOracle::take_notices(const StepPlan& plan, const Step& step) {
  for (const FailureNotice& notice : plan.notices) {
    EXPECT_TRUE(noticed_.insert(notice.transfer).second) << "a failure is announced once";
    EXPECT_FALSE(loads_.contains(notice.transfer)) << "a rank may still write its blocks";
    for (const auto& [other, on_its_way] : notices_) {
      EXPECT_NE(on_its_way.engine_id, notice.engine_request_id)
          << "two failures of one id on their way together";
    }
    known_.insert(notice.transfer);
    notices_.emplace(notice.transfer,
                     Notice{notice.engine_request_id, step.notice_uids.at(notice.transfer), {}});
  }
}

void PlanOracle::end(std::map<TransferId, Transfer>& transfers, const TransferEnded& ended,
                     RankId rank) {
  const auto found = transfers.find(ended.transfer);
  ASSERT_NE(found, transfers.end()) << "transfer " << ended.transfer.value() << " was never planned"
                                    << " or had ended";
  Transfer& transfer = found->second;
  EXPECT_TRUE(transfer.ended_on.insert(rank.value()).second) << "ended twice on one rank";
  transfer.num_used[rank.value()] = 0;
  if (ended.outcome != Outcome::kDone) transfer.failed = true;
}

void PlanOracle::take_report(const StepReport& report) {
  const std::uint32_t rank = report.rank.value();
  for (const StoreGathered& gathered : report.gathered) {
    const auto found = stores_.find(gathered.transfer);
    ASSERT_NE(found, stores_.end());
    Transfer& store = found->second;
    EXPECT_TRUE(store.gathered_on.insert(rank).second);
    EXPECT_LE(gathered.num_gathered, store.num_blocks());
    store.num_used[rank] = gathered.num_gathered;
    if (gathered.num_gathered == 0) store.ended_on.insert(rank);
  }
  for (const TransferEnded& ended : report.stores) end(stores_, ended, report.rank);
  for (const TransferEnded& ended : report.loads) {
    end(loads_, ended, report.rank);
    for (const DamagedSlot& one : ended.damaged) {
      damaged_.insert(first_unit(one.slab_class, one.slot));
    }
  }
  for (const ChunkEnded& ended : report.chunks) end_chunks(ended, report.rank);
  for (const TransferId transfer : report.announced) {
    const auto found = notices_.find(transfer);
    ASSERT_NE(found, notices_.end()) << transfer.value() << " was announced without a notice";
    EXPECT_TRUE(found->second.announced_on.insert(rank).second) << "announced twice on one rank";
  }
  std::erase_if(stores_, [](const auto& store) {
    return store.second.gathered_on.size() == 2 && store.second.ended_on.size() == 2;
  });
  std::erase_if(loads_, [this](const auto& load) {
    const Transfer& of = load.second;
    if (of.ended_on.size() != 2) return false;
    ended_.push_back({"", of.uid, of.failed});
    return true;
  });
  std::erase_if(notices_, [this](const auto& notice) {
    const Notice& of = notice.second;
    if (of.announced_on.size() != 2) return false;
    announced_.push_back({of.engine_id, of.uid, true});
    return true;
  });
}

void PlanOracle::take_announced(const std::vector<std::string>& ids,
                                const StepReport& report) const {
  std::vector<std::string> expected;
  for (const TransferId transfer : report.announced) {
    const auto found = notices_.find(transfer);
    if (found != notices_.end()) expected.push_back(found->second.engine_id);
  }
  std::vector<std::string> announced = ids;
  std::sort(expected.begin(), expected.end());
  std::sort(announced.begin(), announced.end());
  EXPECT_EQ(announced, expected) << "what a rank tells the engine it confirms in the same step";
}

std::vector<PlanOracle::Told> PlanOracle::take_ended_loads() { return std::exchange(ended_, {}); }
std::vector<PlanOracle::Told> PlanOracle::take_announced() { return std::exchange(announced_, {}); }

bool PlanOracle::loading(std::uint64_t uid) const {
  return std::any_of(loads_.begin(), loads_.end(),
                     [uid](const auto& load) { return load.second.uid == uid; });
}

bool PlanOracle::announcing(std::uint64_t uid) const {
  return std::any_of(notices_.begin(), notices_.end(),
                     [uid](const auto& notice) { return notice.second.uid == uid; });
}

bool PlanOracle::owes(std::uint32_t rank) const {
  const auto not_ended = [rank](const auto& transfer) {
    return !transfer.second.ended_on.contains(rank);
  };
  return std::any_of(stores_.begin(), stores_.end(), not_ended) ||
         std::any_of(loads_.begin(), loads_.end(), not_ended) ||
         std::any_of(notices_.begin(), notices_.end(), [rank](const auto& notice) {
           return !notice.second.announced_on.contains(rank);
         });
}

std::uint32_t PlanOracle::num_slots_written_by(std::uint32_t rank) const {
  std::uint32_t sum = 0;
  for (const auto& [transfer, store] : stores_) sum += store.num_used[rank];
  return sum;
}

std::uint32_t PlanOracle::num_slots_owed_by(std::uint32_t rank) const {
  std::uint32_t sum = 0;
  for (const auto& [transfer, store] : stores_) {
    if (!store.ended_on.contains(rank)) sum += static_cast<std::uint32_t>(store.num_blocks());
  }
  return sum;
}

}  // namespace kvferry::connector
