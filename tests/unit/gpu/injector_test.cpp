// SPDX-License-Identifier: Apache-2.0
// The log of injections says what really happened to every block.
#include "injector.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::gpu {
namespace {

using What = InjectionEvent::What;
using Bytes = std::vector<std::uint8_t>;

constexpr std::uint64_t kBlockBytes = 48;
constexpr std::size_t kNumSlots = 40;

std::uintptr_t address(const std::uint8_t& byte) { return reinterpret_cast<std::uintptr_t>(&byte); }

/// A ring, a tier and a pool of blocks, and what a correct link would have brought.
class Memory {
 public:
  explicit Memory(double probability, std::uint64_t seed = 1, std::string log_file = {})
      : injector_({.probability = probability, .log_file = std::move(log_file)}, seed),
        random_(seed) {}

  void store(const std::vector<std::size_t>& slots) {
    std::vector<CopyRun> runs;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      std::uint8_t* const packed = &ring_[i * kBlockBytes];
      // Few values, so that some blocks are equal.
      std::fill_n(packed, kBlockBytes, static_cast<std::uint8_t>(random_() % 8));
      std::copy_n(packed, kBlockBytes, &truth_[slots[i] * kBlockBytes]);
      add(runs, {.destination = slot(slots[i]), .source = address(*packed), .bytes = kBlockBytes});
    }
    injector_.know_blocks(address(ring_[0]), slots.size(), kBlockBytes);
    injector_.copy(InjectionWay::kToTier, runs);
  }
  /// The slots that arrived with other bytes.
  std::set<std::uintptr_t> load(const std::vector<std::size_t>& slots) {
    std::vector<CopyRun> runs;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      add(runs, {.destination = address(pool_[i * kBlockBytes]),
                 .source = slot(slots[i]),
                 .bytes = kBlockBytes});
    }
    injector_.copy(InjectionWay::kFromTier, runs);
    std::set<std::uintptr_t> differ;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (std::memcmp(&pool_[i * kBlockBytes], &truth_[slots[i] * kBlockBytes], kBlockBytes) != 0) {
        differ.insert(slot(slots[i]));
      }
    }
    return differ;
  }
  /// Distinct slots, neighbours now and then, so that their runs become one.
  std::vector<std::size_t> some_slots() {
    std::vector<std::size_t> slots(kNumSlots);
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = i;
    if (random_() % 2 == 0) std::shuffle(slots.begin(), slots.end(), random_);
    const std::size_t first = random_() % (kNumSlots - 10);
    return {slots.begin() + static_cast<std::ptrdiff_t>(first),
            slots.begin() + static_cast<std::ptrdiff_t>(first + 1 + random_() % 10)};
  }
  [[nodiscard]] std::uintptr_t slot(std::size_t number) const {
    return address(tier_[number * kBlockBytes]);
  }
  [[nodiscard]] bool is_damaged(std::uintptr_t slot_address) const {
    const std::uint64_t offset = slot_address - address(tier_[0]);
    return std::memcmp(&tier_[offset], &truth_[offset], kBlockBytes) != 0;
  }
  Injector& injector() { return injector_; }

 private:
  static void add(std::vector<CopyRun>& runs, const CopyRun& run) {
    if (!runs.empty() && runs.back().destination + runs.back().bytes == run.destination &&
        runs.back().source + runs.back().bytes == run.source) {
      runs.back().bytes += run.bytes;
    } else {
      runs.push_back(run);
    }
  }

  Injector injector_;
  std::mt19937_64 random_;
  Bytes ring_ = Bytes(kNumSlots * kBlockBytes);
  Bytes tier_ = Bytes(kNumSlots * kBlockBytes);
  Bytes pool_ = Bytes(kNumSlots * kBlockBytes);
  Bytes truth_ = Bytes(kNumSlots * kBlockBytes);
};

std::set<std::uintptr_t> arrived(const std::vector<InjectionEvent>& events) {
  std::set<std::uintptr_t> slots;
  for (const InjectionEvent& event : events) {
    if (event.what == What::kArrived) slots.insert(event.slot);
  }
  return slots;
}

TEST(Injector, ItsLogNamesTheBlocksThatArriveWithOtherBytesAndNoOthers) {
  std::map<std::pair<InjectionWay, InjectionKind>, std::uint64_t> seen;
  std::uint64_t num_without_effect = 0;
  std::set<std::uintptr_t> standing;
  Memory memory(0.1);
  std::vector<std::size_t> all(kNumSlots);
  for (std::size_t i = 0; i < kNumSlots; ++i) all[i] = i;
  memory.store(all);
  for (int round = 0; round < 3000; ++round) {
    memory.store(memory.some_slots());
    std::vector<InjectionEvent> events = memory.injector().take();
    EXPECT_TRUE(arrived(events).empty());
    const std::set<std::uintptr_t> differ = memory.load(memory.some_slots());
    const std::vector<InjectionEvent> of_load = memory.injector().take();
    ASSERT_EQ(arrived(of_load), differ) << "round " << round;
    events.insert(events.end(), of_load.begin(), of_load.end());
    for (const InjectionEvent& event : events) {
      if (event.what == What::kReplaced) {
        ASSERT_EQ(standing.erase(event.slot), 1U) << "nothing was damaged there";
      }
      if (event.what != What::kInjected) continue;
      ++seen[{event.way, event.kind}];
      if (event.num_bytes == 0) ++num_without_effect;
      if (event.way == InjectionWay::kFromTier) continue;
      if (event.num_bytes == 0) {
        standing.erase(event.slot);
      } else {
        standing.insert(event.slot);
      }
    }
    std::set<std::uintptr_t> damaged;
    for (const std::size_t i : all) {
      if (memory.is_damaged(memory.slot(i))) damaged.insert(memory.slot(i));
    }
    ASSERT_EQ(standing, damaged) << "round " << round;
  }
  EXPECT_EQ(seen.size(), 13U) << "each kind in each direction, and three of them at rest";
  EXPECT_GT(num_without_effect, 0U) << "equal blocks that changed places, at the least";
}

TEST(Injector, DamagesNothingAndLogsNothingWithoutAProbability) {
  Memory memory(0);
  for (int round = 0; round < 100; ++round) {
    memory.store(memory.some_slots());
    const std::set<std::uintptr_t> differ = memory.load(memory.some_slots());
    EXPECT_TRUE(differ.empty());
  }
  EXPECT_TRUE(memory.injector().take().empty());
}

TEST(Injector, StrikesAsOftenAsItsProbabilitySays) {
  Memory memory(0.01, 5);
  std::set<std::uint64_t> injections;
  std::vector<std::size_t> all(kNumSlots);
  for (std::size_t i = 0; i < kNumSlots; ++i) all[i] = i;
  constexpr int kRounds = 2500;
  for (int round = 0; round < kRounds; ++round) memory.store(all);
  for (const InjectionEvent& event : memory.injector().take()) {
    if (event.what == What::kInjected) injections.insert(event.injection);
  }
  // 100,000 blocks, 1,000 expected, deviation 31.
  EXPECT_NEAR(static_cast<double>(injections.size()), 1000, 160);
}

TEST(Injector, EveryBlockIsStruckIfItIsCertain) {
  Memory memory(1);
  std::vector<std::size_t> all(kNumSlots);
  for (std::size_t i = 0; i < kNumSlots; ++i) all[i] = i;
  memory.store(all);
  std::set<std::uint64_t> injections;
  for (const InjectionEvent& event : memory.injector().take()) injections.insert(event.injection);
  // The first blocks at rest have none that were stored before.
  EXPECT_GE(injections.size(), kNumSlots - 1);
}

TEST(Injector, TwoOfOneSeedDoTheSame) {
  Memory one(0.1, 9);
  Memory two(0.1, 9);
  for (int round = 0; round < 200; ++round) {
    one.store(one.some_slots());
    two.store(two.some_slots());
  }
  const std::vector<InjectionEvent> ones = one.injector().take();
  const std::vector<InjectionEvent> twos = two.injector().take();
  ASSERT_EQ(ones.size(), twos.size());
  for (std::size_t i = 0; i < ones.size(); ++i) {
    EXPECT_EQ(ones[i].slot - one.slot(0), twos[i].slot - two.slot(0));
    EXPECT_EQ(ones[i].kind, twos[i].kind);
    EXPECT_EQ(ones[i].num_bytes, twos[i].num_bytes);
  }
}

// A ring is given back in other parts than it was taken.
TEST(Injector, BlocksOfAGatherStayKnownWhenALaterOneOverwritesTheirNeighbours) {
  Bytes ring(8 * kBlockBytes);
  Bytes tier(8 * kBlockBytes, 7);
  for (const std::uint64_t other_bytes : {kBlockBytes, kBlockBytes / 4}) {
    Injector injector({.probability = 1}, 3);
    injector.know_blocks(address(ring[0]), 8, kBlockBytes);
    injector.know_blocks(address(ring[2 * kBlockBytes]), kBlockBytes / other_bytes, other_bytes);
    const CopyRun run{
        .destination = address(tier[0]), .source = address(ring[0]), .bytes = ring.size()};
    injector.copy(InjectionWay::kToTier, {&run, 1});
    std::set<std::uint64_t> offsets;
    for (const InjectionEvent& event : injector.take())
      offsets.insert(event.slot - run.destination);
    for (const std::uint64_t block : {0, 1, 3, 4, 5, 6, 7}) {
      EXPECT_EQ(offsets.count(block * kBlockBytes), 1U) << block;
    }
    EXPECT_EQ(offsets.size(), 7 + kBlockBytes / other_bytes);
  }
}

// Its damage ends with it, and whatever is stored there later is another block.
TEST(Injector, MemoryThatWasGivenBackIsForgotten) {
  Memory memory(1);
  memory.store({0, 1, 2, 3});
  static_cast<void>(memory.injector().take());
  memory.injector().forget(memory.slot(0), 4 * kBlockBytes);
  const std::vector<InjectionEvent> events = memory.injector().take();
  EXPECT_FALSE(events.empty());
  for (const InjectionEvent& event : events) EXPECT_EQ(event.what, What::kReplaced);
  memory.injector().forget(memory.slot(0), 4 * kBlockBytes);
  EXPECT_TRUE(memory.injector().take().empty());
}

TEST(Injector, ACopyThatFailsIsNotItsWork) {
  Memory memory(1);
  memory.store({0, 1});
  static_cast<void>(memory.injector().take());
  Bytes from(kBlockBytes, 7);
  Bytes to(kBlockBytes, 1);
  const CopyRun run{
      .destination = address(to[0]), .source = address(from[0]), .bytes = from.size()};
  memory.injector().copy_failing(InjectionWay::kFromTier, {&run, 1}, kBlockBytes / 2);
  EXPECT_EQ(std::count(to.begin(), to.end(), 7), static_cast<std::ptrdiff_t>(kBlockBytes / 2));
  EXPECT_TRUE(memory.injector().take().empty());
}

TEST(Injector, ItsLogCanBeAFile) {
  const std::filesystem::path file =
      std::filesystem::path(::testing::TempDir()) / "kvferry_injections.jsonl";
  std::filesystem::remove(file);
  {
    Memory memory(1, 1, file.string());
    memory.store({3});
    EXPECT_TRUE(memory.injector().take().empty());
  }
  std::ifstream in(file);
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  EXPECT_TRUE(line.starts_with(R"({"event": "injected", "process": )")) << line;
  EXPECT_NE(line.find(R"("way": "to_tier", "kind": ")"), std::string::npos) << line;
  EXPECT_TRUE(line.ends_with("}")) << line;
  std::filesystem::remove(file);
}

TEST(Injector, RefusesWhatItCannotDo) {
  EXPECT_THROW(Injector({.probability = 1.5}, 0), ConfigError);
  EXPECT_THROW(Injector({.probability = -0.1}, 0), ConfigError);
  EXPECT_THROW(std::ignore = make_host_device({.inject = {.probability = 2}}), ConfigError);
  EXPECT_THROW(Injector({.probability = 0.1, .log_file = "/no/such/folder/log"}, 0), ConfigError);
}

}  // namespace
}  // namespace kvferry::gpu
