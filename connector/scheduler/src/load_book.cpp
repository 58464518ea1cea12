// SPDX-License-Identifier: Apache-2.0
#include "load_book.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/slots/tier_withdrawals.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvferry::connector {
namespace {

/// How many slots one line names, so that memory that fails as a whole does not fill the log.
constexpr std::size_t kMostNamed = 4;

bool names_each_once(const LeasedPrefix& parts, const std::vector<DamagedSlot>& damaged) {
  const auto number_of = [](SlabClassId slab_class, SlotId slot) {
    return std::uint64_t{slab_class.value()} << 32U | slot.value();
  };
  std::unordered_set<std::uint64_t> leased;
  for (const LeasedBlocks& part : parts) {
    for (const SlotId slot : part.lease.slots()) {
      leased.insert(number_of(part.to.slab_class, slot));
    }
  }
  return std::all_of(damaged.begin(), damaged.end(), [&](const DamagedSlot& one) {
    return leased.erase(number_of(one.slab_class, one.slot)) == 1;
  });
}

/// "slot 5 (block 1a2b3c4d of KV cache group 0, of this engine)"
std::string text_of(const cpu_tier::WithdrawnSlot& of) {
  std::string text = "slot " + std::to_string(of.slot.value()) + " (";
  if (of.key) {
    constexpr std::size_t kBytes = 4;
    std::array<char, 2 * kBytes + 1> digits{};
    for (std::size_t i = 0; i < kBytes; ++i) {
      std::snprintf(&digits[2 * i], 3, "%02x", static_cast<unsigned>(of.key->hash[i]));
    }
    text += std::string("block ") + digits.data() + " of KV cache group " +
            std::to_string(of.key->group) + ", ";
  }
  return text + (of.is_own ? "of this engine)" : "of another engine)");
}

std::string text_of(const std::vector<cpu_tier::WithdrawnSlot>& withdrawn) {
  std::string text;
  for (std::size_t i = 0; i < std::min(withdrawn.size(), kMostNamed); ++i) {
    text += (i == 0 ? "" : ", ") + text_of(withdrawn[i]);
  }
  if (withdrawn.size() > kMostNamed) {
    text += " and " + std::to_string(withdrawn.size() - kMostNamed) + " more";
  }
  return text;
}

const char* name_of(LoadState state) {
  switch (state) {
    case LoadState::kBegun:
      return "begun";
    case LoadState::kSent:
      return "sent";
    case LoadState::kFailed:
      return "failed";
    case LoadState::kAnnounced:
      return "announced";
  }
  return "unknown";
}

recorder::LoadFate fate_of(LoadEnd end, bool succeeded) {
  if (end == LoadEnd::kAborted) return recorder::LoadFate::kAborted;
  if (end == LoadEnd::kStale) return recorder::LoadFate::kStale;
  return succeeded ? recorder::LoadFate::kLoaded : recorder::LoadFate::kFailed;
}

}  // namespace

LoadBook::~LoadBook() {
  for (auto& [transfer, load] : loads_) {
    // No rank knows of the other loads.
    if (load.state != LoadState::kSent) {
      release(load);
      continue;
    }
    for (LeasedBlocks& part : load.parts) {
      tier_.leave_behind(std::move(part.lease));
    }
  }
}

void LoadBook::begin(Request& request, TransferId transfer, std::optional<LeasedPrefix> leased) {
  const Owner owner = request.owner(requests_.domain());
  requests_.begin_load(request, transfer);
  Load load{owner, request.engine_id, {}, RankRoll(world_size_)};
  if (leased) load.parts = std::move(*leased);
  Load& begun = loads_.emplace(transfer, std::move(load)).first->second;
  if (leased) {
    begun_.push_back(transfer);
  } else {
    ++num_failed_;
    fail(transfer, begun);
  }
}

void LoadBook::release(Load& load) {
  for (LeasedBlocks& part : load.parts) {
    tier_.release(std::move(part.lease));
  }
  load.parts.clear();
}

void LoadBook::fail(TransferId transfer, Load& load) {
  release(load);
  load.roll = RankRoll(world_size_);
  load.state = LoadState::kFailed;
  failed_.push_back(transfer);
}

void LoadBook::plan(StepPlan& plan, const RankPatience& patience,
                    const LoadPatience& load_patience) {
  plan_expiries(plan, load_patience);
  for (const TransferId transfer : begun_) {
    Load& load = loads_.at(transfer);
    if (load.state != LoadState::kBegun) continue;
    load.state = LoadState::kSent;
    load.sent = patience.stamp();
    load.waits_since = load_patience.stamp();
    LoadOrder& order = plan.loads.emplace_back(LoadOrder{transfer, load.owner, {}});
    for (LeasedBlocks& part : load.parts) {
      if (part.to.blocks.empty()) continue;
      order.parts.push_back({part.to.slab_class, std::exchange(part.to.blocks, {})});
    }
  }
  begun_.clear();
  plan.cancels = std::exchange(cancels_, {});
  if (!failed_.empty()) plan_notices(plan, patience);
}

// Ranks differ in which loads they have begun, so no rank decides alone: each says how its part
// ended.
void LoadBook::plan_expiries(StepPlan& plan, const LoadPatience& load_patience) {
  for (auto& [transfer, load] : loads_) {
    if (load.state != LoadState::kSent || load.expired || load.doomed) continue;
    if (!load_patience.has_ended(load.waits_since)) continue;
    load.expired = true;
    plan.expiries.push_back(transfer);
  }
}

void LoadBook::plan_notices(StepPlan& plan, const RankPatience& patience) {
  std::vector<TransferId> later;
  for (const TransferId transfer : failed_) {
    const auto found = loads_.find(transfer);
    Load& load = found->second;
    if (requests_.meaning_of_end(load.owner, transfer) == LoadEnd::kStale) {
      ++num_stale_;
      note_end(load, transfer, recorder::LoadFate::kStale);
      loads_.erase(found);
    } else if (announcing_.insert(load.engine_id).second) {
      load.state = LoadState::kAnnounced;
      load.sent = patience.stamp();
      plan.notices.push_back({transfer, load.engine_id});
    } else {
      later.push_back(transfer);
    }
  }
  failed_ = std::move(later);
}

void LoadBook::cancel(TransferId transfer) {
  Load& load = loads_.at(transfer);
  if (load.state == LoadState::kSent) cancels_.push_back(transfer);
  if (load.state != LoadState::kBegun) return;
  note_end(load, transfer, recorder::LoadFate::kAborted);
  fail(transfer, load);
}

void LoadBook::doom_all() {
  for (auto& [transfer, load] : loads_) {
    if (load.state == LoadState::kSent) {
      load.doomed = true;
      cancels_.push_back(transfer);
    } else if (load.state == LoadState::kBegun) {
      ++num_failed_;
      note_end(load, transfer, recorder::LoadFate::kFailed);
      fail(transfer, load);
    }
  }
}

bool LoadBook::mark_ended(RankId rank, const TransferEnded& ended) {
  const auto found = loads_.find(ended.transfer);
  if (found == loads_.end() || found->second.state != LoadState::kSent) return false;
  if (!found->second.roll.ended(rank, ended.outcome)) return false;
  if (found->second.roll.all_ended()) ended_.push_back(ended.transfer);
  if (!ended.damaged.empty()) {
    damages_.push_back({ended.transfer, rank, ended.damaged});
  } else if (ended.outcome == Outcome::kFailed) {
    found->second.failed_undamaged = true;
  }
  if (ended.outcome == Outcome::kDone) damage_.note_good_load(rank);
  return true;
}

void LoadBook::expect_fits(const StepReport& report) const {
  const cpu_tier::TierWithdrawals slots(tier_);
  for (const DamagedSlot& found : report.scrubbed) {
    if (slots.has(found)) continue;
    throw ProtocolError("rank " + std::to_string(report.rank.value()) + " found slot " +
                        std::to_string(found.slot.value()) + " of class " +
                        std::to_string(found.slab_class.value()) +
                        " damaged, which the tier does not have; scheduler and workers must run "
                        "the same kvferry version");
  }
  for (const TransferEnded& ended : report.loads) {
    const auto found = loads_.find(ended.transfer);
    if (ended.damaged.empty() || found == loads_.end()) continue;
    const Load& load = found->second;
    if (load.state != LoadState::kSent) continue;
    if (!names_each_once(load.parts, ended.damaged)) {
      throw ProtocolError("rank " + std::to_string(report.rank.value()) +
                          " found damaged slots of" + " load " +
                          std::to_string(ended.transfer.value()) +
                          " that it does not read, or one of them twice; scheduler and workers" +
                          " must run the same kvferry version");
    }
  }
}

bool LoadBook::mark_announced(RankId rank, TransferId transfer) {
  const auto found = loads_.find(transfer);
  if (found == loads_.end() || found->second.state != LoadState::kAnnounced) return false;
  if (!found->second.roll.ended(rank, Outcome::kDone)) return false;
  if (found->second.roll.all_ended()) announced_.push_back(transfer);
  return true;
}

void LoadBook::settle_failures() {
  for (const Damage& damage : std::exchange(damages_, {})) withdraw(damage);
  for (const Scrubbed& found : std::exchange(scrubbed_, {})) withdraw(found);
  for (const TransferId transfer : ended_) {
    const Load& load = loads_.at(transfer);
    // Here it is unknown whether the slot or the way to it is bad. Offering the key again could
    // fail for ever (policy `recompute`). If blocks are damaged, the other ones are known to be
    // good.
    if (!load.failed_undamaged) continue;
    for (const LeasedBlocks& part : load.parts) {
      tier_.forget(part.lease);
    }
  }
}

void LoadBook::withdraw(const Damage& damage) {
  const Load& load = loads_.at(damage.transfer);
  std::vector<cpu_tier::WithdrawnSlot> withdrawn;
  for (const LeasedBlocks& part : load.parts) {
    std::vector<SlotId> slots;
    for (const DamagedSlot& one : damage.slots) {
      if (one.slab_class == part.to.slab_class) slots.push_back(one.slot);
    }
    if (slots.empty()) continue;
    const auto more = cpu_tier::TierWithdrawals(tier_).withdraw(part.lease, slots);
    withdrawn.insert(withdrawn.end(), more.begin(), more.end());
  }
  const auto is_new = [](const cpu_tier::WithdrawnSlot& one) { return one.key.has_value(); };
  const auto num_new = std::count_if(withdrawn.begin(), withdrawn.end(), is_new);
  damage_.note_damaged_load(damage.rank, withdrawn.size(), static_cast<std::size_t>(num_new));
  damage_lines_.push_back("rank " + std::to_string(damage.rank.value()) + " loaded " +
                          std::to_string(withdrawn.size()) + " of " +
                          std::to_string(num_leases(load)) + " blocks of request " +
                          load.engine_id + " with other bytes than were stored: " +
                          text_of(withdrawn) + ". Their slots will not be used again");
}

void LoadBook::withdraw(const Scrubbed& found) {
  const auto withdrawn = cpu_tier::TierWithdrawals(tier_).withdraw(found.slot);
  if (!withdrawn) return;
  damage_.note_scrubbed(found.rank);
  damage_lines_.push_back("rank " + std::to_string(found.rank.value()) +
                          " read a block again with other bytes than were stored: " +
                          text_of(*withdrawn) + ". Its slot will not be used again");
}

FoldResult LoadBook::settle_ends() {
  FoldResult result;
  for (const TransferId transfer : std::exchange(ended_, {})) settle_end(transfer, result);
  for (const TransferId transfer : std::exchange(announced_, {})) {
    settle_announced(transfer, result);
  }
  return result;
}

void LoadBook::settle_end(TransferId transfer, FoldResult& result) {
  Load& load = loads_.at(transfer);
  if (succeeded(load)) num_loaded_ += num_leases(load);
  const LoadEnd end = requests_.meaning_of_end(load.owner, transfer);
  if (!succeeded(load) && (end == LoadEnd::kWaitedFor || load.roll.any_failed())) ++num_failed_;
  if (!succeeded(load) && end == LoadEnd::kWaitedFor && load.expired && !load.doomed &&
      !load.roll.any_failed()) {
    ++num_expired_;
  }
  note_end(load, transfer, fate_of(end, succeeded(load)));
  release(load);
  if (end == LoadEnd::kWaitedFor && !succeeded(load)) return fail(transfer, load);
  static_cast<void>(requests_.end_load(load.owner, transfer));
  if (end == LoadEnd::kWaitedFor) succeeded_.push_back(load.engine_id);
  if (end == LoadEnd::kStale) {
    ++num_stale_;
  } else {
    result.ended.push_back(std::move(load.engine_id));
  }
  loads_.erase(transfer);
}

void LoadBook::settle_announced(TransferId transfer, FoldResult& result) {
  Load& load = loads_.at(transfer);
  announcing_.erase(load.engine_id);
  const LoadEnd end = requests_.end_load(load.owner, transfer);
  if (journal_ != nullptr) {
    end == LoadEnd::kStale ? journal_->stale(load.owner.request)
                           : journal_->told(load.owner.request);
  }
  if (end == LoadEnd::kStale) {
    ++num_stale_;
    result.stale.push_back(std::move(load.engine_id));
  } else {
    result.ended.push_back(std::move(load.engine_id));
  }
  loads_.erase(transfer);
}

void LoadBook::add_overdue(const RankPatience& patience, std::optional<Overdue>& found) const {
  for (const auto& [transfer, load] : loads_) {
    if (load.state != LoadState::kSent && load.state != LoadState::kAnnounced) continue;
    if (!patience.overdue(load.sent)) continue;
    const auto describe = [id = transfer, &of = load] {
      return "load " + std::to_string(id.value()) + " of request " + of.engine_id + " " +
             to_string(of.owner);
    };
    add_silent(patience, load.roll, transfer, load.sent, describe, found);
  }
}

const Request* LoadBook::waiting_request(TransferId transfer) const {
  const auto found = loads_.find(transfer);
  if (found == loads_.end()) return nullptr;
  const Load& load = found->second;
  const bool may_succeed = (load.state == LoadState::kBegun || load.state == LoadState::kSent) &&
                           !load.doomed && !load.roll.any_failed();
  if (!may_succeed) return nullptr;
  const LoadEnd end = requests_.meaning_of_end(load.owner, transfer);
  return end == LoadEnd::kWaitedFor ? requests_.find(load.engine_id) : nullptr;
}

std::vector<OpenTransfer> LoadBook::oldest(std::size_t most) const {
  std::vector<OpenTransfer> found;
  for (const auto& [transfer, load] : loads_) {
    if (found.size() == most) break;
    std::string state = name_of(load.state);
    if (load.doomed) state += ", doomed";
    if (load.expired) state += ", expired";
    OpenTransfer one{transfer,  load.owner, load.engine_id, std::move(state), num_leases(load),
                     load.sent, {}};
    if (load.state == LoadState::kSent || load.state == LoadState::kAnnounced) {
      load.roll.for_each_silent([&one](RankId rank) { one.silent.push_back(rank); });
    }
    found.push_back(std::move(one));
  }
  return found;
}

std::size_t LoadBook::num_leases() const {
  std::size_t sum = 0;
  for (const auto& [transfer, load] : loads_) sum += num_leases(load);
  return sum;
}

std::size_t LoadBook::num_leases(const Load& load) {
  std::size_t sum = 0;
  for (const LeasedBlocks& part : load.parts) sum += part.lease.size();
  return sum;
}

}  // namespace kvferry::connector
