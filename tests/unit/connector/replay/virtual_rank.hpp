// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// What the slots of one rank hold: the identity of a block (BlockSlot), or kTorn. Engines that
/// share a tier have one for each rank.
class VirtualMemory {
 public:
  /// No block's bytes, or those of several.
  static constexpr std::uint64_t kTorn = 1;

  void write(SlotId slot, std::uint64_t content, std::uint64_t writer) {
    slots_[slot.value()] = {content, writer};
  }
  /// Whether it holds the block that it is said to hold.
  [[nodiscard]] bool holds(const BlockSlot& pair) const {
    const auto found = slots_.find(pair.slot.value());
    return found != slots_.end() && found->second.content == pair.identity;
  }
  [[nodiscard]] std::uint64_t writer_of(SlotId slot) const {
    return slots_.at(slot.value()).writer;
  }

 private:
  struct Slot {
    std::uint64_t content = kTorn;
    std::uint64_t writer = 0;  ///< An engine's number.
  };
  std::map<std::uint32_t, Slot> slots_;
};

/// A rank without threads, in virtual time, with a memory if it is given one. What a plan asks of
/// it ends some steps later, in any order, well or badly; it can stall, and it can die.
class VirtualRank {
 public:
  VirtualRank(RankId rank, DomainId domain) : rank_(rank), domain_(domain) {}

  /// From now on it reads and writes this, as the rank of this engine, and expects to load what its
  /// plans say.
  void use(VirtualMemory& memory, std::uint64_t engine) {
    memory_ = &memory;
    engine_ = engine;
  }

  void bind(const StepPlan& plan) {
    executed_ = plan.seq;
    for (const StoreOrder& order : plan.stores) {
      begin(order.transfer, Kind::kStore).add(order.blocks);
    }
    for (const LoadOrder& order : plan.loads) {
      Work& load = begin(order.transfer, Kind::kLoad);
      for (const ClassBlocks& part : order.parts) load.add(part.blocks);
      expect_right(load, "begins");
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
        const auto size = static_cast<std::uint32_t>(one.pairs.size());
        const bool has_room = is_hurried_ || size == 0 || below(4) != 0;
        const std::uint32_t count =
            has_room ? size : size - static_cast<std::uint32_t>(below(size + 1));
        report.gathered.push_back({one.transfer, count});
        if (count == 0) return true;
        one.pairs.resize(count);
        write(one, VirtualMemory::kTorn);
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
      return std::any_of(one.pairs.begin(), one.pairs.end(), [&](const BlockSlot& pair) {
        return std::find(blocks.begin(), blocks.end(), pair.block.value()) != blocks.end();
      });
    });
  }
  /// What the device can still write when the rank has died.
  [[nodiscard]] std::vector<BlockSlot> writes_under_way() const {
    std::vector<BlockSlot> pairs;
    for (const Work& one : under_way_) {
      if (one.kind != Kind::kStore) continue;
      pairs.insert(pairs.end(), one.pairs.begin(), one.pairs.end());
    }
    return pairs;
  }
  /// Loads of blocks that another engine stored.
  [[nodiscard]] std::uint64_t num_foreign_blocks() const { return num_foreign_blocks_; }
  void die() { is_dead_ = true; }
  /// From now on it ends everything at once, and well.
  void hurry() { is_hurried_ = true; }

 private:
  enum class Kind : std::uint8_t { kStore, kLoad, kNotice };
  struct Work {
    TransferId transfer;
    Kind kind = Kind::kStore;
    std::vector<BlockSlot> pairs;
    bool is_gathered = false;
    bool is_cancelled = false;

    void add(const std::vector<BlockSlot>& more) {
      pairs.insert(pairs.end(), more.begin(), more.end());
    }
  };

  Work& begin(TransferId transfer, Kind kind) {
    Work& one = under_way_.emplace_back();
    one.transfer = transfer;
    one.kind = kind;
    return one;
  }
  void end(const Work& one, StepReport& report, bool is_failed) {
    if (one.kind == Kind::kNotice) return report.announced.push_back(one.transfer);
    TransferEnded ended{one.transfer, Outcome::kDone, ""};
    if (one.is_cancelled) ended.outcome = Outcome::kCancelled;
    if (is_failed) ended.outcome = Outcome::kFailed;
    const bool is_done = ended.outcome == Outcome::kDone;
    if (one.kind == Kind::kStore) {
      if (is_done) write(one);
      return report.stores.push_back(std::move(ended));
    }
    if (is_done) expect_right(one, "ends");
    report.loads.push_back(std::move(ended));
  }
  /// The blocks, or something else in their slots.
  void write(const Work& store, std::optional<std::uint64_t> content = std::nullopt) {
    if (memory_ == nullptr) return;
    for (const BlockSlot& pair : store.pairs) {
      memory_->write(pair.slot, content.value_or(pair.identity), engine_);
    }
  }
  void expect_right(const Work& load, const char* when) {
    if (memory_ == nullptr) return;
    for (const BlockSlot& pair : load.pairs) {
      EXPECT_TRUE(memory_->holds(pair))
          << "slot " << pair.slot.value() << " does not hold the block when load "
          << load.transfer.value() << " of engine " << engine_ << " " << when;
      if (memory_->holds(pair) && memory_->writer_of(pair.slot) != engine_) ++num_foreign_blocks_;
    }
  }

  RankId rank_;
  DomainId domain_;
  PlanSeq executed_;
  std::vector<Work> under_way_;
  std::uint64_t num_stalled_ = 0;  ///< Steps.
  bool is_dead_ = false;
  bool is_hurried_ = false;
  VirtualMemory* memory_ = nullptr;
  std::uint64_t engine_ = 0;
  std::uint64_t num_foreign_blocks_ = 0;
};

}  // namespace kvferry::connector
