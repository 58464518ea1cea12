// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/promise_ledger.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <bit>
#include <string>

namespace kvferry::cpu_tier {
namespace {

float checked_share(float share) {
  if (share >= 0 && share <= 1) return share;
  throw ConfigError("max_promised_share is " + std::to_string(share) +
                    "; allowed is a share of the tier from 0 to 1");
}

std::uint32_t share_of(float share, std::uint32_t num_slots) {
  return static_cast<std::uint32_t>(share * static_cast<float>(num_slots));
}

}  // namespace

std::uint8_t PromiseLedger::depth_of(std::size_t position) {
  return static_cast<std::uint8_t>(std::min<int>(std::bit_width(position) + 1, kMaxDepth));
}

PromiseLedger::PromiseLedger(float max_share, std::uint32_t max_slots)
    : max_share_(checked_share(max_share)), max_slots_(max_slots) {}

void PromiseLedger::resize(std::uint32_t num_slots) {
  num_slots_ = num_slots;
  max_balance_ = std::int64_t{share_of(max_share_, num_slots)} * kAskedPerCredit;
  balance_ = std::min(balance_, max_balance_);
}

void PromiseLedger::begin_use() {
  if (departed_) return;
  max_departed_ = share_of(max_share_, max_slots_) + 1;
  departed_.emplace(max_departed_);
}

void PromiseLedger::promise(std::uint64_t hash, std::uint8_t depth) {
  begin_use();
  Promised& promised = promised_[hash];
  ++promised.count;
  promised.depth = depth;
}

bool PromiseLedger::end(std::uint64_t hash) {
  const auto found = promised_.find(hash);
  if (found == promised_.end() || --found->second.count > 0) return false;
  promised_.erase(found);
  return true;
}

std::uint32_t PromiseLedger::max_stays() const {
  if (!departed_) return 0;
  const auto num_credits = static_cast<std::uint32_t>(this->num_credits());
  return num_credits - std::min(num_credits, departed_->size(kEarly));
}

void PromiseLedger::asked(std::size_t count) {
  balance_ = std::min(balance_ + static_cast<std::int64_t>(count), max_balance_);
}

void PromiseLedger::won(std::uint32_t count) {
  num_won_ += count;
  balance_ = std::min(balance_ + std::int64_t{count} * kAskedPerCredit, max_balance_);
}

bool PromiseLedger::has_missed(std::uint64_t hash, std::uint32_t num_turns) {
  const std::uint32_t found = departed_->find(static_cast<std::uint32_t>(hash));
  if (found == HashedLists::kNone) return false;
  // Without promises the tier would hold the block, and this offer would be a use of it.
  departed_->make_hottest(found, (*departed_)[found].list);
  (*departed_)[found].stamp = num_turns;
  return true;
}

void PromiseLedger::lost(std::uint32_t count) {
  num_lost_ += count;
  balance_ -= std::int64_t{count} * kAskedPerCredit;
}

void PromiseLedger::stored(std::uint64_t hash) {
  if (!departed_ || departed_->size() == 0) return;
  const std::uint32_t found = departed_->find(static_cast<std::uint32_t>(hash));
  if (found != HashedLists::kNone) departed_->erase(found);
}

void PromiseLedger::remember(std::uint64_t hash, std::size_t list, std::uint32_t num_turns) {
  const auto id = static_cast<std::uint32_t>(hash);
  std::uint32_t entry = departed_->find(id);
  if (entry != HashedLists::kNone) {
    departed_->make_hottest(entry, list);
  } else {
    if (departed_->size() == max_departed_) {
      departed_->erase(departed_->coldest(departed_->size(kInTurn) > 0 ? kInTurn : kEarly));
    }
    entry = departed_->insert(id, list);
  }
  (*departed_)[entry].stamp = num_turns;
}

void PromiseLedger::forget_old(std::size_t list, std::uint32_t num_turns, std::uint32_t count) {
  while (departed_->size(list) > 0 &&
         num_turns - (*departed_)[departed_->coldest(list)].stamp >= count) {
    departed_->erase(departed_->coldest(list));
  }
}

void PromiseLedger::left_in_turn(std::uint64_t hash, std::uint32_t turn, std::uint32_t num_turns,
                                 std::uint32_t num_stays) {
  if (!departed_) return;
  if (num_stays > 0) remember(hash, kInTurn, turn);
  forget_old(kInTurn, num_turns, num_stays);
  forget_old(kEarly, num_turns, num_slots_);
}

void PromiseLedger::left_early(std::uint64_t hash, std::uint32_t num_turns) {
  ++num_early_;
  remember(hash, kEarly, num_turns);
}

std::uint32_t PromiseLedger::room_for_early(std::uint32_t num_stays,
                                            std::uint32_t num_waiting) const {
  const auto num_credits = static_cast<std::uint32_t>(this->num_credits());
  const std::uint32_t num_used =
      num_stays + num_waiting + (departed_ ? departed_->size(kEarly) : 0);
  return num_credits - std::min(num_credits, num_used);
}

}  // namespace kvferry::cpu_tier
