// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_options.hpp"
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

/// A block, its slot, and the slab class of that.
struct PlacedBlock {
  SlabClassId slab_class;
  BlockSlot pair;
};

/// What the chunks of one rank hold. Engines that share a tier have one for each rank. A chunk has
/// as many units as slots of the class that has most of them; a slot is as many units as fit. A
/// unit holds the identity of a block (BlockSlot) or of none.
class VirtualMemory {
 public:
  /// No block's bytes, or those of several.
  static constexpr std::uint64_t kTorn = 1;

  /// Their slots in a chunk are powers of two.
  explicit VirtualMemory(const std::vector<SlabClass>& classes) {
    for (const SlabClass& one : classes) slots_per_chunk_.push_back(one.slots_per_chunk);
  }

  void write(const PlacedBlock& block, std::uint64_t content, std::uint64_t writer) {
    for_units(block, [&](std::uint32_t unit) { units_[unit] = {content, writer}; });
  }
  /// Whether the slot holds the block.
  [[nodiscard]] bool holds(const PlacedBlock& block) const {
    bool holds = true;
    for_units(block, [&](std::uint32_t unit) {
      const auto found = units_.find(unit);
      holds = holds && found != units_.end() && found->second.content == block.pair.identity;
    });
    return holds;
  }
  /// The number of the engine that wrote a slot.
  [[nodiscard]] std::uint64_t writer_of(const PlacedBlock& block) const {
    std::uint64_t writer = 0;
    for_units(block, [&](std::uint32_t unit) { writer = units_.at(unit).writer; });
    return writer;
  }

 private:
  struct Unit {
    std::uint64_t content = kTorn;
    std::uint64_t writer = 0;
  };
  void for_units(const PlacedBlock& block, const auto& call) const {
    const std::uint32_t most = *std::max_element(slots_per_chunk_.begin(), slots_per_chunk_.end());
    const std::uint32_t size = most / slots_per_chunk_[block.slab_class.value()];
    for (std::uint32_t i = 0; i < size; ++i) call(block.pair.slot.value() * size + i);
  }

  std::vector<std::uint32_t> slots_per_chunk_;
  std::map<std::uint32_t, Unit> units_;
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
      begin(order.transfer, Kind::kStore).add(order.slab_class, order.blocks);
    }
    for (const LoadOrder& order : plan.loads) {
      Work& load = begin(order.transfer, Kind::kLoad);
      for (const ClassBlocks& part : order.parts) load.add(part.slab_class, part.blocks);
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
        const auto size = static_cast<std::uint32_t>(one.blocks.size());
        const bool has_room = is_hurried_ || size == 0 || below(4) != 0;
        const std::uint32_t count =
            has_room ? size : size - static_cast<std::uint32_t>(below(size + 1));
        report.gathered.push_back({one.transfer, count});
        if (count == 0) return true;
        one.blocks.resize(count);
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
      return std::any_of(one.blocks.begin(), one.blocks.end(), [&](const PlacedBlock& block) {
        return std::find(blocks.begin(), blocks.end(), block.pair.block.value()) != blocks.end();
      });
    });
  }
  /// What the device can still write when the rank has died.
  [[nodiscard]] std::vector<PlacedBlock> writes_under_way() const {
    std::vector<PlacedBlock> blocks;
    for (const Work& one : under_way_) {
      if (one.kind != Kind::kStore) continue;
      blocks.insert(blocks.end(), one.blocks.begin(), one.blocks.end());
    }
    return blocks;
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
    std::vector<PlacedBlock> blocks;
    bool is_gathered = false;
    bool is_cancelled = false;

    void add(SlabClassId slab_class, const std::vector<BlockSlot>& pairs) {
      for (const BlockSlot& pair : pairs) blocks.push_back({slab_class, pair});
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
    for (const PlacedBlock& block : store.blocks) {
      memory_->write(block, content.value_or(block.pair.identity), engine_);
    }
  }
  void expect_right(const Work& load, const char* when) {
    if (memory_ == nullptr) return;
    for (const PlacedBlock& block : load.blocks) {
      EXPECT_TRUE(memory_->holds(block))
          << "slot " << block.pair.slot.value() << " of class " << block.slab_class.value()
          << " does not hold the block when load " << load.transfer.value() << " of engine "
          << engine_ << " " << when;
      if (memory_->holds(block) && memory_->writer_of(block) != engine_) ++num_foreign_blocks_;
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
