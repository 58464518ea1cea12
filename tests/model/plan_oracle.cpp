// SPDX-License-Identifier: Apache-2.0
#include "plan_oracle.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace kvferry::connector {

void PlanOracle::check_slots(TransferId transfer, const std::vector<BlockSlot>& blocks,
                             bool writes) {
  std::set<std::uint32_t> slots;
  for (const BlockSlot& pair : blocks) {
    EXPECT_LT(pair.slot.value(), num_slots_);
    EXPECT_TRUE(slots.insert(pair.slot.value()).second || !writes) << "one slot twice in a store";
  }
  const auto check = [&](const std::map<TransferId, Transfer>& transfers, const char* what) {
    for (const auto& [other, in_flight] : transfers) {
      for (const std::uint32_t num_used : in_flight.num_used) {
        for (std::uint32_t i = 0; i < num_used; ++i) {
          // TensorRT-LLM#9056, LMCache#3130: a slot written while it is written or read.
          EXPECT_FALSE(slots.contains(in_flight.blocks[i].slot.value()))
              << "transfer " << transfer.value() << " takes slot "
              << in_flight.blocks[i].slot.value() << " of " << what << " " << other.value();
        }
      }
    }
  };
  check(stores_, "store");
  if (writes) check(loads_, "load");
}

void PlanOracle::take_plan(const StepPlan& plan, const ToyPool& pool,
                           const std::set<std::uint32_t>& written,
                           const std::map<std::string, std::uint64_t>& uids) {
  EXPECT_EQ(plan.seq, last_seq_.next());
  last_seq_ = plan.seq;
  bool any_later = false;
  for (const LoadOrder& order : plan.loads) {
    check_slots(order.transfer, order.blocks, false);
    Transfer load;
    load.engine_id = order.engine_request_id;
    const auto uid = uids.find(order.engine_request_id);
    load.uid = uid == uids.end() ? 0 : uid->second;
    load.blocks = order.blocks;
    load.num_used[0] = load.num_used[1] = static_cast<std::uint32_t>(order.blocks.size());
    EXPECT_TRUE(loads_.emplace(order.transfer, std::move(load)).second);
  }
  for (const StoreOrder& order : plan.stores) {
    check_slots(order.transfer, order.blocks, true);
    EXPECT_FALSE(order.blocks.empty());
    const bool early = order.readiness == StoreReadiness::kNow;
    EXPECT_FALSE(early && any_later) << "ready stores come first";
    any_later = any_later || !early;
    for (const BlockSlot& pair : order.blocks) {
      if (early) {
        ++num_early_blocks;
        EXPECT_FALSE(written.contains(pair.block.value()))
            << "block " << pair.block.value() << " is written by this step and read before it";
      } else {
        EXPECT_FALSE(pool.is_free(pair.block.value())) << "nobody owns it behind the forward";
      }
    }
    Transfer store;
    store.blocks = order.blocks;
    store.num_used[0] = store.num_used[1] = static_cast<std::uint32_t>(order.blocks.size());
    EXPECT_TRUE(stores_.emplace(order.transfer, std::move(store)).second);
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
  if (ended.outcome != EndedAs::kDone) transfer.failed = true;
}

void PlanOracle::take_report(const StepReport& report) {
  for (const StoreGathered& gathered : report.gathered) {
    const auto found = stores_.find(gathered.transfer);
    ASSERT_NE(found, stores_.end());
    Transfer& store = found->second;
    EXPECT_TRUE(store.gathered_on.insert(report.rank.value()).second);
    EXPECT_LE(gathered.num_gathered, store.blocks.size());
    store.num_used[report.rank.value()] = gathered.num_gathered;
    if (gathered.num_gathered == 0) store.ended_on.insert(report.rank.value());
  }
  for (const TransferEnded& ended : report.stores) end(stores_, ended, report.rank);
  for (const TransferEnded& ended : report.loads) end(loads_, ended, report.rank);
  std::erase_if(stores_, [](const auto& store) {
    return store.second.gathered_on.size() == 2 && store.second.ended_on.size() == 2;
  });
  std::erase_if(loads_, [this](const auto& load) {
    const Transfer& of = load.second;
    if (of.ended_on.size() != 2) return false;
    ended_.push_back({of.engine_id, of.uid, of.failed});
    return true;
  });
}

std::vector<PlanOracle::EndedLoad> PlanOracle::take_ended_loads() {
  return std::exchange(ended_, {});
}

bool PlanOracle::loading(const std::string& engine_id) const {
  for (const auto& [transfer, load] : loads_) {
    if (load.engine_id == engine_id) return true;
  }
  return false;
}

}  // namespace kvferry::connector
