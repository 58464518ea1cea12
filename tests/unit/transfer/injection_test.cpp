// SPDX-License-Identifier: Apache-2.0
// G11: what is damaged on purpose on its way to the tier, in the tier or on its way back is found,
// and nothing else is: the injector's log and the tags agree one to one, and the bytes with both.
// KVFERRY_SEED replays a run, KVFERRY_SOAK_SECONDS runs longer, and KVFERRY_SOAK_BLOCKS until so
// many blocks were checked.

#include "asked.hpp"
#include "rig.hpp"
#include "stand_ins.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvferry::transfer {
namespace {

using gpu::CopyPath;
using gpu::InjectionEvent;
using gpu::InjectionKind;
using gpu::InjectionWay;
using Addresses = std::set<std::uintptr_t>;

/// Of the pool's blocks, the first ones are stored and the others loaded into.
constexpr std::uint32_t kNumSources = 256;

struct Scale {
  std::uint32_t slots_per_class = 512;
  std::uint32_t wave = 128;  ///< Blocks stored at a time, and blocks loaded.
  std::uint32_t piece_blocks = 24;
};
constexpr Scale kShort = {};
/// Of a soak that nobody asked for.
constexpr std::uint64_t kBriefBlocks = 40'000;
constexpr Scale kSoak{.slots_per_class = 8192, .wave = 2048, .piece_blocks = 256};

/// Random stores and loads beside injections. A wave stores and loads at the same time, never one
/// slot in both directions.
class Waves {
 public:
  /// `take`: the injector's log since the last call.
  Waves(Rig& rig, const Scale& scale, std::uint64_t seed,
        std::function<std::vector<InjectionEvent>()> take)
      : rig_(rig), scale_(scale), random_(seed), take_(std::move(take)) {
    for (const SlabClassId slab_class : kClasses) {
      for (std::uint32_t b = 0; b < kNumSources; ++b) {
        rig_.write_block(slab_class, BlockId(b), version(b));
      }
    }
  }

  /// Stores into every slot.
  void fill_tier() {
    for (const SlabClassId slab_class : kClasses) {
      auto& slots = stored_[slab_class.value()];
      for (std::uint32_t s = 0; s < scale_.slots_per_class; ++s) {
        slots.push_back({.slot = SlotId(slab_class.value() * scale_.slots_per_class + s)});
      }
      for (std::uint32_t first = 0; first < scale_.slots_per_class; first += scale_.wave) {
        store(slab_class, {&slots[first], scale_.wave});
        finish({});
      }
    }
  }

  void run_wave() {
    const SlabClassId slab_class = kClasses[random_() % kClasses.size()];
    auto& slots = stored_[slab_class.value()];
    // Shuffled a little: neighbours become one run now and then.
    for (std::uint32_t i = 0; i < scale_.wave / 2; ++i) {
      std::swap(slots[random_() % slots.size()], slots[random_() % slots.size()]);
    }
    load(slab_class, {&slots[scale_.wave], scale_.wave});
    store(slab_class, {slots.data(), scale_.wave});
    finish(slab_class);
  }

  void say_what_was_done() const {
    std::cout << num_stored_ << " blocks stored and " << num_checked_ << " loaded and checked; "
              << num_injections_ << " injections, " << num_without_effect_
              << " blocks that they did not change, " << num_replaced_
              << " damaged ones stored over or given back, " << damaged_.size()
              << " damaged ones left; " << num_arrived_ << " arrived damaged, " << num_found_
              << " were found" << std::endl;
  }
  [[nodiscard]] std::uint64_t num_checked() const { return num_checked_; }
  [[nodiscard]] std::uint64_t num_found() const { return num_found_; }
  [[nodiscard]] std::uint64_t num_without_effect() const { return num_without_effect_; }
  [[nodiscard]] std::uint64_t num_replaced() const { return num_replaced_; }
  /// Kinds of injections that changed a block, by way.
  [[nodiscard]] const std::set<std::pair<InjectionWay, InjectionKind>>& kinds() const {
    return kinds_;
  }

 private:
  static constexpr std::array kClasses{Rig::kStrided, Rig::kDense, Rig::kOdd};

  struct Stored {
    SlotId slot;
    std::uint32_t source = 0;  ///< The block whose bytes the slot should hold.
    std::uint64_t identity = 0;
  };
  struct Load {
    std::vector<BlockSlot> blocks;
    std::vector<std::uint32_t> sources;
  };

  /// Some blocks are equal.
  static std::uint64_t version(std::uint32_t source) { return source % 200; }

  void store(SlabClassId slab_class, std::span<Stored> slots) {
    std::vector<BlockSlot> blocks;
    const auto first = static_cast<std::uint32_t>(random_() % kNumSources);
    for (std::uint32_t i = 0; i < slots.size(); ++i) {
      slots[i].source = (first + i) % kNumSources;
      // An earlier version of a block has its identity, another block has not.
      if (random_() % 2 == 0) slots[i].identity = random_();
      blocks.push_back({BlockId(slots[i].source), slots[i].slot, slots[i].identity});
    }
    ASSERT_EQ(rig_.store(++transfer_, slab_class, blocks), blocks.size());
    num_stored_ += blocks.size();
  }

  void load(SlabClassId slab_class, std::span<const Stored> slots) {
    std::uint32_t target = kNumSources;
    while (!slots.empty()) {
      // Mostly of one piece. In others a piece that fails can keep the next from being submitted.
      const std::size_t most = scale_.piece_blocks * (random_() % 8 == 0 ? 4 : 1);
      const auto part = slots.first(std::min<std::size_t>(1 + random_() % most, slots.size()));
      Load& load = loads_[TransferId(++transfer_)];
      for (const Stored& one : part) {
        load.blocks.push_back({BlockId(target++), one.slot, one.identity});
        load.sources.push_back(one.source);
      }
      rig_.load(transfer_, slab_class, load.blocks);
      slots = slots.subspan(part.size());
    }
  }

  /// Compares what the tags found with the bytes, and with what arrived damaged by the log.
  void finish(std::optional<SlabClassId> slab_class) {
    Addresses found;
    for (const Completion& end : rig_.finish()) {
      if (end.kind == TransferKind::kStore) {
        EXPECT_EQ(end.outcome, Outcome::kDone) << end.reason;
        continue;
      }
      const Load load = std::move(loads_.extract(end.transfer).mapped());
      EXPECT_EQ(end.outcome == Outcome::kDone, end.damaged.empty()) << end.reason;
      const bool is_one_piece = load.blocks.size() <= scale_.piece_blocks;
      if (is_one_piece || end.damaged.empty()) num_checked_ += load.blocks.size();
      for (std::size_t i = 0; i < load.blocks.size(); ++i) {
        const BlockSlot& block = load.blocks[i];
        const DamagedSlot slot{*slab_class, block.slot};
        const bool is_damaged =
            std::find(end.damaged.begin(), end.damaged.end(), slot) != end.damaged.end();
        if (is_damaged) found.insert(rig_.classes[slab_class->value()].slots.address(block.slot));
        // Of several pieces some may not have come.
        if (!is_damaged && !is_one_piece && !end.damaged.empty()) continue;
        EXPECT_NE(holds(*slab_class, block.block, load.sources[i]), is_damaged)
            << "slot " << block.slot.value();
      }
    }
    EXPECT_TRUE(loads_.empty());
    EXPECT_EQ(note_log(), found);
    num_found_ += found.size();
  }

  [[nodiscard]] bool holds(SlabClassId slab_class, BlockId block, std::uint32_t source) const {
    const gpu::BlockGeometry& geometry = rig_.geometries[slab_class.value()];
    for (std::size_t f = 0; f < geometry.fragments.size(); ++f) {
      const auto bytes_of = [&](BlockId one) {
        return reinterpret_cast<const void*>(geometry.fragment_address(f, one));
      };
      if (std::memcmp(bytes_of(block), bytes_of(BlockId(source)), geometry.fragments[f].bytes) != 0)
        return false;
    }
    return true;
  }

  /// The slots of blocks that arrived damaged. The log contradicts itself nowhere.
  Addresses note_log() {
    Addresses arrived;
    for (const InjectionEvent& event : take_()) {
      switch (event.what) {
        case InjectionEvent::What::kInjected:
          num_injections_ = std::max(num_injections_, event.injection);
          if (event.num_bytes == 0) {
            ++num_without_effect_;
          } else {
            kinds_.emplace(event.way, event.kind);
          }
          if (event.way == InjectionWay::kFromTier) break;
          if (event.num_bytes == 0) {
            damaged_.erase(event.slot);
          } else {
            damaged_.insert(event.slot);
          }
          break;
        case InjectionEvent::What::kArrived:
          EXPECT_TRUE(event.way == InjectionWay::kFromTier || damaged_.count(event.slot) == 1);
          arrived.insert(event.slot);
          break;
        case InjectionEvent::What::kReplaced:
          EXPECT_EQ(damaged_.erase(event.slot), 1U);
          ++num_replaced_;
      }
    }
    num_arrived_ += arrived.size();
    return arrived;
  }

  Rig& rig_;
  const Scale scale_;
  std::mt19937_64 random_;
  std::function<std::vector<InjectionEvent>()> take_;
  std::map<std::uint32_t, std::vector<Stored>> stored_;  ///< By class, in any order.
  std::map<TransferId, Load> loads_;
  std::uint64_t transfer_ = 0;
  Addresses damaged_;  ///< In the tier, by the log.
  std::set<std::pair<InjectionWay, InjectionKind>> kinds_;
  std::uint64_t num_stored_ = 0;
  std::uint64_t num_checked_ = 0;
  std::uint64_t num_injections_ = 0;
  std::uint64_t num_without_effect_ = 0;
  std::uint64_t num_replaced_ = 0;
  std::uint64_t num_arrived_ = 0;
  std::uint64_t num_found_ = 0;
};

RigOptions with_tags(CopyPath path, const Scale& scale = kShort) {
  return {.num_blocks = kNumSources + scale.wave,
          .num_slots = 3 * scale.slots_per_class,
          .transfer = {.staging_bytes = scale.wave * Rig::kSlotBytes * 2,
                       .piece_bytes = scale.piece_blocks * Rig::kSlotBytes,
                       .copy_path = path,
                       .load_staging_bytes = 4 * scale.piece_blocks * Rig::kSlotBytes,
                       .verify = Verification::kAll},
          .tags = true};
}

std::uint64_t seed() { return asked("KVFERRY_SEED", 1); }

class InjectionTest : public TransferTest, public ::testing::WithParamInterface<CopyPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, InjectionTest,
                         ::testing::Values(CopyPath::kPerRun, CopyPath::kBatch, CopyPath::kKernel,
                                           CopyPath::kStaged),
                         [](const ::testing::TestParamInfo<CopyPath>& instance) {
                           return std::string(gpu::to_string(instance.param));
                         });

TEST_P(InjectionTest, WhatIsInjectedIsFoundAndNothingElse) {
  RigOptions options = with_tags(GetParam());
  options.link = {.inject = {.probability = 0.01}, .seed = seed()};
  Rig rig(options);
  Waves waves(rig, kShort, seed(), [&rig] { return gpu::take_injections(*rig.device); });
  waves.fill_tier();
  for (int wave = 0; wave < 150 && !HasFailure(); ++wave) waves.run_wave();
  waves.say_what_was_done();
  EXPECT_GT(waves.num_found(), 100U);
  EXPECT_GT(waves.num_without_effect(), 0U);
  EXPECT_GT(waves.num_replaced(), 0U);
  // Swaps need two blocks in one copy, which not every way has.
  using enum InjectionKind;
  for (const InjectionKind kind : {kFlip, kWrongSlot, kOldVersion, InjectionKind::kShort}) {
    for (const InjectionWay way : {InjectionWay::kToTier, InjectionWay::kFromTier}) {
      EXPECT_EQ(waves.kinds().count({way, kind}), 1U) << to_string(way) << " " << to_string(kind);
    }
  }
  for (const InjectionKind kind : {kFlip, kWrongSlot, kSwap}) {
    EXPECT_EQ(waves.kinds().count({InjectionWay::kInTier, kind}), 1U) << to_string(kind);
  }
}

TEST_P(InjectionTest, NothingIsFoundWhereNothingIsInjected) {
  Rig rig(with_tags(GetParam()));
  Waves waves(rig, kShort, seed(), [&rig] { return gpu::take_injections(*rig.device); });
  waves.fill_tier();
  for (int wave = 0; wave < 20 && !HasFailure(); ++wave) waves.run_wave();
  EXPECT_EQ(waves.num_found(), 0U);
}

// The whole way, with the link that keeps copies in flight.
TEST_P(InjectionTest, ASlowLinkInjectsToo) {
  RigOptions options = with_tags(GetParam());
  options.link = {.latency = std::chrono::microseconds(20),
                  .order = gpu::LinkOrder::kShuffled,
                  .inject = {.probability = 0.02},
                  .seed = seed()};
  Rig rig(options);
  Waves waves(rig, kShort, seed(), [&rig] { return gpu::take_injections(*rig.device); });
  waves.fill_tier();
  for (int wave = 0; wave < 10 && !HasFailure(); ++wave) waves.run_wave();
  EXPECT_GT(waves.num_found(), 0U);
}

TEST(InjectionSoak, EveryInjectionIsFoundAndNoneIsInvented) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = asked("KVFERRY_SOAK_SECONDS");
  const std::uint64_t blocks =
      asked("KVFERRY_SOAK_BLOCKS").value_or(seconds ? ~std::uint64_t{0} : kBriefBlocks);
  const auto end = Clock::now() + std::chrono::seconds(seconds.value_or(std::uint64_t{1} << 30));
  std::uint64_t its_seed = asked("KVFERRY_SEED").value_or(std::random_device()());
  std::uint64_t num_checked = 0;
  constexpr std::array kPaths{CopyPath::kBatch, CopyPath::kKernel, CopyPath::kStaged,
                              CopyPath::kPerRun};
  for (std::size_t round = 0; Clock::now() < end && num_checked < blocks; ++round) {
    SCOPED_TRACE("KVFERRY_SEED=" + std::to_string(its_seed));
    RigOptions options = with_tags(kPaths[round % kPaths.size()], kSoak);
    options.link = {.inject = {.probability = 2e-4}, .seed = its_seed};
    Rig rig(options);
    Waves waves(rig, kSoak, its_seed, [&rig] { return gpu::take_injections(*rig.device); });
    waves.fill_tier();
    // Some seconds of each way.
    for (int wave = 0; wave < 2000 && Clock::now() < end; ++wave) {
      if (num_checked + waves.num_checked() >= blocks) break;
      waves.run_wave();
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    std::cout << "seed " << its_seed << ", " << gpu::to_string(kPaths[round % kPaths.size()])
              << ": ";
    waves.say_what_was_done();
    num_checked += waves.num_checked();
    ++its_seed;
  }
  std::cout << num_checked << " blocks were checked" << std::endl;
}

class StandInInjectionTest : public TransferTest,
                             public ::testing::WithParamInterface<std::tuple<bool, CopyPath>> {};
INSTANTIATE_TEST_SUITE_P(
    StandIns, StandInInjectionTest,
    ::testing::Combine(::testing::Bool(), ::testing::Values(CopyPath::kPerRun, CopyPath::kBatch,
                                                            CopyPath::kKernel, CopyPath::kStaged)),
    [](const ::testing::TestParamInfo<StandInInjectionTest::ParamType>& instance) {
      return std::string(std::get<0>(instance.param) ? "hip_" : "cuda_") +
             gpu::to_string(std::get<1>(instance.param));
    });

TEST_P(StandInInjectionTest, TheKernelsSumsFindWhatTheStandInInjects) {
  const auto& [is_hip, path] = GetParam();
  fakes::FakeControl& control = control_of(is_hip ? KVFERRY_FAKE_HIP : KVFERRY_FAKE_CUDA);
  control.reset();
  {
    RigOptions options = with_tags(path);
    options.make_device = is_hip ? &hip_stand_in : &cuda_stand_in;
    Rig rig(options);
    Waves waves(rig, kShort, seed(), [&control] { return control.take_injections(); });
    // Only now: the rig writes the pool by way of registered memory, too.
    control.inject({.probability = 0.01}, seed());
    waves.fill_tier();
    for (int wave = 0; wave < 25 && !HasFailure(); ++wave) waves.run_wave();
    waves.say_what_was_done();
    EXPECT_GT(waves.num_found(), 20U);
  }
  control.reset();
}

}  // namespace
}  // namespace kvferry::transfer
