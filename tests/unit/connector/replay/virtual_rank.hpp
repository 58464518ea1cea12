// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// A rank without memory and without threads, in virtual time. What a plan asks of it ends some
/// steps later, in any order, well or badly; it can stall, and it can die.
class VirtualRank {
 public:
  VirtualRank(RankId rank, DomainId domain) : rank_(rank), domain_(domain) {}

  void bind(const StepPlan& plan) {
    executed_ = plan.seq;
    for (const StoreOrder& order : plan.stores) {
      begin(order.transfer, Kind::kStore).add(order.blocks);
    }
    for (const LoadOrder& order : plan.loads) {
      Work& load = begin(order.transfer, Kind::kLoad);
      for (const ClassBlocks& part : order.parts) load.add(part.blocks);
    }
    for (const FailureNotice& notice : plan.notices) begin(notice.transfer, Kind::kNotice);
    for (const TransferId transfer : plan.cancels) {
      for (Work& one : under_way_) one.is_cancelled |= one.transfer == transfer;
    }
  }
  /// What it says after the step; nothing while it stalls.
  [[nodiscard]] std::optional<StepReport> report(std::mt19937_64& random) {
    const auto below = [&random](std::uint64_t bound) { return random() % bound; };
    if (is_dead_) return std::nullopt;
    if (num_stalled_ == 0 && below(60) == 0) num_stalled_ = 1 + below(8);
    if (num_stalled_ > 0 && !is_hurried_) {
      --num_stalled_;
      return std::nullopt;
    }
    StepReport report;
    report.domain = domain_;
    report.rank = rank_;
    report.executed = executed_;
    std::shuffle(under_way_.begin(), under_way_.end(), random);
    std::erase_if(under_way_, [&](Work& one) {
      if (one.kind == Kind::kStore && !std::exchange(one.is_gathered, true)) {
        const auto size = static_cast<std::uint32_t>(one.blocks.size());
        const bool has_room = is_hurried_ || size == 0 || below(4) != 0;
        const std::uint32_t count =
            has_room ? size : size - static_cast<std::uint32_t>(below(size + 1));
        report.gathered.push_back({one.transfer, count});
        if (count == 0) return true;
      }
      if (!is_hurried_ && below(3) != 0) return false;
      end(one, report, !is_hurried_ && below(8) == 0);
      return true;
    });
    for (const Work& one : under_way_) {
      const bool is_older =
          report.oldest_under_way == TransferId() || one.transfer < report.oldest_under_way;
      if (is_older) report.oldest_under_way = one.transfer;
    }
    return report;
  }

  /// Whether it may still touch one of these blocks.
  [[nodiscard]] bool touches(const std::vector<std::uint32_t>& blocks) const {
    return std::any_of(under_way_.begin(), under_way_.end(), [&](const Work& one) {
      return std::find_first_of(one.blocks.begin(), one.blocks.end(), blocks.begin(),
                                blocks.end()) != one.blocks.end();
    });
  }
  void die() { is_dead_ = true; }
  /// From now on it ends everything at once, and well.
  void hurry() { is_hurried_ = true; }

 private:
  enum class Kind : std::uint8_t { kStore, kLoad, kNotice };
  struct Work {
    TransferId transfer;
    Kind kind = Kind::kStore;
    std::vector<std::uint32_t> blocks;
    bool is_gathered = false;
    bool is_cancelled = false;

    void add(const std::vector<BlockSlot>& pairs) {
      for (const BlockSlot& pair : pairs) blocks.push_back(pair.block.value());
    }
  };

  Work& begin(TransferId transfer, Kind kind) {
    Work& one = under_way_.emplace_back();
    one.transfer = transfer;
    one.kind = kind;
    return one;
  }
  static void end(const Work& one, StepReport& report, bool is_failed) {
    if (one.kind == Kind::kNotice) return report.announced.push_back(one.transfer);
    TransferEnded ended{one.transfer, Outcome::kDone, ""};
    if (one.is_cancelled) ended.outcome = Outcome::kCancelled;
    if (is_failed) ended.outcome = Outcome::kFailed;
    if (one.kind == Kind::kStore) return report.stores.push_back(std::move(ended));
    report.loads.push_back(std::move(ended));
  }

  RankId rank_;
  DomainId domain_;
  PlanSeq executed_;
  std::vector<Work> under_way_;
  std::uint64_t num_stalled_ = 0;  ///< Steps.
  bool is_dead_ = false;
  bool is_hurried_ = false;
};

}  // namespace kvferry::connector
