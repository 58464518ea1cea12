// SPDX-License-Identifier: Apache-2.0
#include "rig.hpp"
#include "test_backend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace kvferry::transfer {
namespace {

/// What a block or slot holds: a pattern, or one value in every byte.
struct Contents {
  std::optional<std::uint64_t> version = {};
  std::uint8_t value = 0;

  [[nodiscard]] Bytes bytes(std::uint64_t num_bytes) const {
    return version ? pattern_bytes(*version, num_bytes) : Bytes(num_bytes, value);
  }
};

/// Random stores, loads, overwrites and cancels against a map of what every block and slot must
/// hold.
class Stress {
 public:
  Stress(std::uint64_t seed, const RigOptions& options)
      : random_(seed), rig_(options), num_slots_(options.num_slots) {
    for (std::uint32_t b = 0; b < options.num_blocks; ++b) {
      for (std::uint32_t g = 0; g < kNumClasses; ++g) {
        const std::uint64_t version = next_version_++;
        rig_.write_block(SlabClassId(g), BlockId(b), version);
        blocks_[{g, b}] = {.version = version};
      }
    }
  }

  void run(std::uint64_t num_transfers) {
    std::atomic<bool> over{false};
    std::thread observer([&] {
      while (!over) {
        static_cast<void>(rig_.engine->stats());
        static_cast<void>(rig_.engine->overdue(std::chrono::nanoseconds(0)));
        static_cast<void>(rig_.engine->wait_idle(std::chrono::microseconds(50)));
      }
    });
    while (next_transfer_ <= num_transfers && !::testing::Test::HasFatalFailure()) {
      switch (random_() % 8) {
        case 0:
        case 1:
        case 2:
          store();
          break;
        case 3:
        case 4:
          load();
          break;
        case 5:
          if (!active_.empty() && random_() % 2 == 0) rig_.engine->cancel(any_active());
          break;
        case 6:
          overwrite(random_() % kNumClasses, any_block());
          break;
        default:
          // Or the transfers are given out before the first of them ends.
          if (random_() % 2 == 0) {
            static_cast<void>(rig_.engine->wait_idle(std::chrono::milliseconds(1)));
          }
          take_ends();
      }
    }
    const bool closes = random_() % 2 == 0;
    if (closes) {
      EXPECT_TRUE(rig_.engine->close(kForever));
    } else {
      EXPECT_TRUE(rig_.engine->wait_idle(kForever));
    }
    take_ends();
    over = true;
    observer.join();
    EXPECT_TRUE(active_.empty()) << active_.size() << " transfers never ended";
    EXPECT_TRUE(rig_.engine->take_scrub_findings().empty());
    EXPECT_EQ(rig_.engine->stats().ring_used_bytes, 0U);
    EXPECT_EQ(rig_.engine->stats().load_staging_used_bytes, 0U);
    EXPECT_EQ(rig_.engine->stats().queued_bytes, 0U);
    EXPECT_EQ(rig_.engine->stats().in_flight_bytes, 0U);
    num_loaded_blocks += rig_.engine->stats().loaded_blocks;
    check_all();
  }

  /// Scatters take more or less time from now on.
  void dawdle() { rig_.valve.dawdle(Valve::Kind::kScatter, std::chrono::microseconds(200)); }

  std::map<Outcome, int> outcomes;
  std::uint64_t num_loaded_blocks = 0;

 private:
  static constexpr std::uint32_t kNumClasses = 3;
  using Place = std::pair<std::uint32_t, std::uint32_t>;  ///< Group and block.

  struct Active {
    TransferKind kind = TransferKind::kStore;
    std::uint32_t slab_class = 0;
    std::vector<BlockSlot> blocks;
    std::vector<Contents> contents;  ///< What arrives.
  };

  std::uint32_t any_block() {
    return static_cast<std::uint32_t>(random_() % rig_.geometries[0].num_blocks);
  }
  TransferId any_active() {
    auto at = active_.begin();
    std::advance(at, random_() % active_.size());
    return TransferId(at->first);
  }

  void overwrite(std::uint64_t slab_class, std::uint32_t block) {
    const Place place(static_cast<std::uint32_t>(slab_class), block);
    if (loading_.contains(place)) return;
    const auto value = static_cast<std::uint8_t>(random_());
    rig_.fill_on_compute(SlabClassId(place.first), BlockId(block), value);
    blocks_[place] = {.value = value};
  }

  void store() {
    Active store;
    store.slab_class = static_cast<std::uint32_t>(random_() % kNumClasses);
    std::set<std::uint32_t> used;
    const std::uint64_t wanted = 1 + random_() % 12;
    for (std::uint64_t i = 0; i < wanted; ++i) {
      const auto slot = static_cast<std::uint32_t>(random_() % num_slots_);
      const std::uint32_t block = any_block();
      if (busy_slots_.contains(slot) || used.contains(slot)) continue;
      if (loading_.contains({store.slab_class, block})) continue;
      used.insert(slot);
      store.blocks.push_back({BlockId(block), SlotId(slot)});
      store.contents.push_back(blocks_.at({store.slab_class, block}));
    }
    const std::uint64_t id = next_transfer_++;
    // In two calls now and then.
    const std::size_t first = random_() % 3 == 0 ? store.blocks.size() / 2 : store.blocks.size();
    const std::span<const BlockSlot> all(store.blocks);
    std::size_t gathered = gather(id, store.slab_class, all.first(first));
    if (gathered == first) gathered += gather(id, store.slab_class, all.subspan(first));
    const bool accepted = rig_.engine->seal(TransferId(id));
    ASSERT_EQ(accepted, gathered != 0);
    // vllm#45704, G1: the engine reuses the blocks at once.
    for (const auto& [block, slot, identity] : store.blocks) {
      if (random_() % 2 == 0) overwrite(store.slab_class, block.value());
    }
    if (!accepted) return;
    store.blocks.resize(gathered);
    store.contents.resize(gathered);
    for (const auto& [block, slot, identity] : store.blocks) {
      busy_slots_.insert(slot.value());
      slots_.erase(slot.value());
    }
    active_[id] = std::move(store);
  }

  std::size_t gather(std::uint64_t id, std::uint32_t slab_class,
                     std::span<const BlockSlot> blocks) {
    return rig_.engine->gather(*rig_.compute, TransferId(id), SlabClassId(slab_class), blocks);
  }

  void load() {
    Active load;
    load.kind = TransferKind::kLoad;
    load.slab_class = static_cast<std::uint32_t>(random_() % kNumClasses);
    for (const auto& [slot, held] : slots_) {
      if (held.first != load.slab_class || random_() % 2 == 0) continue;
      const std::uint32_t block = any_block();
      if (!loading_.insert({load.slab_class, block}).second) continue;
      load.blocks.push_back({BlockId(block), SlotId(slot)});
      load.contents.push_back(held.second);
      ++readers_[slot];
      busy_slots_.insert(slot);
    }
    const std::uint64_t id = next_transfer_++;
    rig_.engine->load(TransferId(id), SlabClassId(load.slab_class), load.blocks,
                      rig_.engine->fence(*rig_.compute));
    active_[id] = std::move(load);
  }

  void take_ends() {
    for (const Completion& end : rig_.engine->poll()) {
      const auto at = active_.find(end.transfer.value());
      ASSERT_NE(at, active_.end()) << "transfer " << end.transfer.value() << " ended twice";
      const Active& active = at->second;
      EXPECT_EQ(end.kind, active.kind);
      EXPECT_EQ(end.outcome == Outcome::kFailed, !end.reason.empty());
      ++outcomes[end.outcome];
      for (std::size_t i = 0; i < active.blocks.size(); ++i) take_end(end, active, i);
      active_.erase(at);
    }
  }

  void take_end(const Completion& end, const Active& active, std::size_t i) {
    const auto [block, slot, identity] = active.blocks[i];
    const bool done = end.outcome == Outcome::kDone;
    if (active.kind == TransferKind::kStore) {
      busy_slots_.erase(slot.value());
      if (!done) return;
      slots_[slot.value()] = {active.slab_class, active.contents[i]};
      ASSERT_EQ(rig_.slot(SlabClassId(active.slab_class), slot), expected(active, i));
      return;
    }
    if (--readers_[slot.value()] == 0) busy_slots_.erase(slot.value());
    loading_.erase({active.slab_class, block.value()});
    if (done) {
      blocks_[{active.slab_class, block.value()}] = active.contents[i];
      ASSERT_EQ(rig_.block(SlabClassId(active.slab_class), block), expected(active, i));
    } else {
      overwrite(active.slab_class, block.value());  // Worthless: the engine would compute it again.
    }
  }

  Bytes expected(const Active& active, std::size_t i) const {
    return active.contents[i].bytes(rig_.packed_bytes(SlabClassId(active.slab_class)));
  }

  void check_all() {
    ASSERT_TRUE(rig_.compute->synchronize(kForever));
    for (const auto& [place, contents] : blocks_) {
      const SlabClassId slab_class(place.first);
      ASSERT_EQ(rig_.block(slab_class, BlockId(place.second)),
                contents.bytes(rig_.packed_bytes(slab_class)));
    }
    for (const auto& [slot, held] : slots_) {
      const SlabClassId slab_class(held.first);
      ASSERT_EQ(rig_.slot(slab_class, SlotId(slot)),
                held.second.bytes(rig_.packed_bytes(slab_class)));
    }
  }

  std::mt19937_64 random_;
  Rig rig_;
  std::uint32_t num_slots_;
  std::uint64_t next_version_ = 1000;
  std::uint64_t next_transfer_ = 1;
  std::map<std::uint64_t, Active> active_;
  std::map<Place, Contents> blocks_;
  std::set<Place> loading_;
  /// Readable slots: their class and contents.
  std::map<std::uint32_t, std::pair<std::uint32_t, Contents>> slots_;
  std::map<std::uint32_t, int> readers_;
  std::set<std::uint32_t> busy_slots_;
};

/// Nothing: what the device's traits and times choose.
class StressTest : public TransferTest,
                   public ::testing::WithParamInterface<std::optional<gpu::CopyPath>> {};
INSTANTIATE_TEST_SUITE_P(
    Paths, StressTest,
    ::testing::Values(std::nullopt, std::optional(gpu::CopyPath::kPerRun),
                      std::optional(gpu::CopyPath::kKernel), std::optional(gpu::CopyPath::kStaged)),
    [](const ::testing::TestParamInfo<std::optional<gpu::CopyPath>>& instance) {
      return std::string(instance.param ? gpu::to_string(*instance.param) : "chosen");
    });

// dynamo#5068, LMCache#4342: right bytes and exactly one end each, under failures, cancels and
// reuse.
TEST_P(StressTest, EveryTransferEndsOnceAndNoByteIsWrong) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::size_t num_loaded_blocks = 0;
  for (int round = 0; round < 4; ++round) {
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(round));
    RigOptions options;
    options.tags = random() % 2 == 0;
    options.backend = gpu::test_backend();
    options.num_blocks = 48;
    options.num_slots = 160;
    options.link.seed = random();
    options.link.fail_probability = round % 2 == 0 ? 0.05 : 0;
    options.link.jitter = std::chrono::microseconds(20);
    options.link.order = random() % 2 == 0 ? gpu::LinkOrder::kFifo : gpu::LinkOrder::kShuffled;
    options.transfer = {.staging_bytes = 1500 + random() % 6000,
                        .max_in_flight_bytes = random() % 4000,
                        .piece_bytes = random() % 1500,
                        .copy_path = GetParam(),
                        .load_staging_bytes = 400 + random() % 4000};
    if (options.tags) {
      options.transfer.verify = random() % 2 == 0 ? Verification::kAll : Verification::kSampled;
      options.transfer.scrub_bandwidth = random() % 2 == 0 ? 0 : std::uint64_t{1} << 40;
    }
    options.compute =
        random() % 4 == 0 ? RigOptions::Compute::kInline : RigOptions::Compute::kThread;
    Stress stress(seed ^ random(), options);
    // So that the scatters of two streams end in any order.
    if (random() % 2 == 0) stress.dawdle();
    stress.run(250);
    if (HasFatalFailure()) return;
    EXPECT_GT(stress.outcomes[Outcome::kDone], 0);
    num_loaded_blocks += stress.num_loaded_blocks;
    if (round % 2 == 1) {
      EXPECT_EQ(stress.outcomes[Outcome::kFailed], 0);
    }
  }
  // In one round of a slow machine all loads may be cancelled or fail.
  EXPECT_GT(num_loaded_blocks, 0U);
}

// close() from another thread at any moment of the engine thread's work; LMCache#4342, #5263.
TEST_P(StressTest, CloseAtAnyMomentEndsEveryAcceptedTransferOnce) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 30; ++round) {
    constexpr std::uint32_t kNumTransfers = 60;
    constexpr std::uint32_t kNumBlocks = 6;
    Rig rig({.backend = gpu::test_backend(),
             .link = {.jitter = std::chrono::microseconds(30), .seed = random()},
             .num_blocks = (kNumTransfers + 1) * kNumBlocks,
             .transfer = {.staging_bytes = 3000,
                          .max_in_flight_bytes = 600,
                          .piece_bytes = 400,
                          .copy_path = GetParam(),
                          .load_staging_bytes = 1000}});
    const std::uint64_t close_after = random() % kNumTransfers;
    std::atomic<std::uint64_t> step{0};
    std::thread closer([&] {
      while (step < close_after) std::this_thread::yield();
      EXPECT_TRUE(rig.engine->close(kForever));
    });
    std::set<std::uint64_t> accepted;
    for (std::uint32_t id = 1; id <= kNumTransfers; ++id) {
      const auto first = static_cast<std::uint32_t>(random() % 50);
      if (random() % 2 == 0) {
        if (rig.store(id, Rig::kStrided, blocks_to_slots(first, first, kNumBlocks)) != 0) {
          accepted.insert(id);
        }
      } else {
        rig.load(id, Rig::kDense, blocks_to_slots(id * kNumBlocks, 80 + first, kNumBlocks));
        accepted.insert(id);
      }
      ++step;
    }
    closer.join();
    EXPECT_TRUE(rig.engine->wait_idle(std::chrono::nanoseconds(0)));
    for (const Completion& end : rig.engine->poll()) {
      EXPECT_EQ(accepted.erase(end.transfer.value()), 1U) << end.transfer.value();
    }
    EXPECT_TRUE(accepted.empty());
    EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
  }
}

}  // namespace
}  // namespace kvferry::transfer
