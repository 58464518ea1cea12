// SPDX-License-Identifier: Apache-2.0
// Values whose bytes, records or tags are not what was stored.
#include "shared_store_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::lmcache {
namespace {

constexpr std::uint64_t kSizes[] = {1, 4096, 100'001, 3 * kMiB, 5 * kMiB + 7};

void flip_bit(std::byte* at, std::uint64_t bit) { at[bit / 8] ^= std::byte{1} << (bit % 8); }

/// What a get of one value comes to, with its tag checked by the client.
Got load(ClientRig& rig, const Item& item) {
  auto buffers = buffers_for({item});
  const Completion got = rig.await(rig.get({item}, buffers));
  EXPECT_TRUE(got.ok) << got.error;
  if (!got.found->at(0)) return Got::kMiss;
  return is_value_of(buffers[0], item.key) ? Got::kRight : Got::kWrong;
}

SlotRecord& record_of(ClientRig& rig, const Item& item) {
  const ObjectStore& store = rig.client.store();
  return *record_at(store.memory(), place_of(rig.client.store(), item), item);
}

TEST(ObjectDamage, AFlippedBitAnywhereIsAMissAndTheOthersAreLoaded) {
  for (const std::uint64_t bytes : kSizes) {
    for (const std::uint64_t bit : {std::uint64_t{0}, 4 * bytes, 8 * bytes - 1}) {
      SCOPED_TRACE(std::to_string(bytes) + " bytes, bit " + std::to_string(bit));
      ClientRig rig(256 * kMiB);
      const std::vector<Item> items = numbered("v", 3, bytes);
      ASSERT_TRUE(rig.put(items).ok);
      flip_bit(place_of(rig.client.store(), items[1]), bit);
      auto buffers = buffers_for(items);
      const Completion got = rig.await(rig.get(items, buffers));
      EXPECT_TRUE(got.ok);
      EXPECT_EQ(got.found, (std::vector<bool>{true, false, true}));
      EXPECT_TRUE(is_value_of(buffers[0], items[0].key) && is_value_of(buffers[2], items[2].key));
      const ClientSnapshot now = rig.client.snapshot();
      EXPECT_EQ(now.store.num_damaged_total, 1U);
      EXPECT_EQ(std::pair(now.num_hits_total, now.num_misses_total), std::pair(2UL, 1UL));
      EXPECT_EQ(now.loaded_bytes_total, 2 * bytes);
      rig.client.store().check_invariants();
    }
  }
}

TEST(ObjectDamage, ADamagedValueIsForgottenAndItsSlotIsNotUsedAgain) {
  ClientRig rig(16 * kMiB);
  const Item item{"model@0@0@aa", 100'000};
  ASSERT_TRUE(rig.put({item}).ok);
  std::byte* const place = place_of(rig.client.store(), item);
  flip_bit(place, 12'345);
  EXPECT_TRUE(has(rig.client.store(), item.key)) << "nobody has looked yet";
  EXPECT_EQ(load(rig, item), Got::kMiss);
  EXPECT_FALSE(has(rig.client.store(), item.key));
  const auto lines = rig.client.store().take_warnings();
  ASSERT_EQ(lines.size(), 1U);
  for (const char* const word : {"object model@0@0@aa of 100000 bytes", "slot 0 of chunk 0",
                                 "arrived with tag", "expected is", "not used again"}) {
    EXPECT_NE(lines[0].find(word), std::string::npos) << word << " is not in: " << lines[0];
  }
  EXPECT_TRUE(rig.client.store().take_warnings().empty());

  // Nothing comes into that slot any more, however much is stored.
  for (int round = 0; round < 40; ++round) {
    const auto more = numbered("more" + std::to_string(round) + "-", 10, item.bytes);
    ASSERT_TRUE(rig.put(more).ok);
    for (const Item& one : more) EXPECT_NE(place_of(rig.client.store(), one), place);
  }
  ASSERT_TRUE(rig.put({item}).ok);
  EXPECT_EQ(load(rig, item), Got::kRight);
  rig.client.store().check_invariants();
}

TEST(ObjectDamage, ValuesThatChangedPlacesAreMisses) {
  ClientRig rig(16 * kMiB);
  const std::vector<Item> items = numbered("v", 2, 30'000);
  ASSERT_TRUE(rig.put(items).ok);
  std::byte* const first = place_of(rig.client.store(), items[0]);
  std::swap_ranges(first, first + items[0].bytes, place_of(rig.client.store(), items[1]));
  for (const Item& item : items) EXPECT_EQ(load(rig, item), Got::kMiss) << item.key;
}

TEST(ObjectDamage, AnotherValuesRecordDoesNotMakeItsBytesRight) {
  ClientRig rig(16 * kMiB);
  const std::vector<Item> items = numbered("v", 4, 30'000);
  ASSERT_TRUE(rig.put(items).ok);
  // Only the record, only its tag, and the bytes as well.
  record_of(rig, items[1]) = record_of(rig, items[0]);
  EXPECT_EQ(load(rig, items[1]), Got::kMiss);
  record_of(rig, items[2]).tag = record_of(rig, items[0]).tag;
  EXPECT_EQ(load(rig, items[2]), Got::kMiss);
  std::memcpy(place_of(rig.client.store(), items[3]), place_of(rig.client.store(), items[0]),
              items[0].bytes);
  record_of(rig, items[3]).tag = record_of(rig, items[0]).tag;
  EXPECT_EQ(load(rig, items[3]), Got::kMiss) << "the tag is the other key's";
  EXPECT_EQ(load(rig, items[0]), Got::kRight);
}

TEST(ObjectDamage, AnEarlierValueOfTheKeyIsAMiss) {
  ClientRig rig(16 * kMiB);
  const Item item{"k", 30'000};
  const auto set = [&](const std::vector<std::byte>& value) {
    ASSERT_TRUE(rig.await(rig.set({item}, {value})).ok);
  };
  const auto earlier = value_of("another", item.bytes);
  set(earlier);
  ASSERT_TRUE(forget(rig.client.store(), item.key));
  set(value_of(item.key, item.bytes));
  EXPECT_EQ(load(rig, item), Got::kRight);
  std::memcpy(place_of(rig.client.store(), item), earlier.data(), earlier.size());
  EXPECT_EQ(load(rig, item), Got::kMiss);
}

TEST(ObjectDamage, ACopyThatEndedShortIsAMiss) {
  for (const std::uint64_t missing : {std::uint64_t{1}, std::uint64_t{4096}, 2 * kMiB}) {
    ClientRig rig(256 * kMiB);
    const Item item{"k", 5 * kMiB};
    ASSERT_TRUE(rig.put({item}).ok);
    std::byte* const end = place_of(rig.client.store(), item) + item.bytes;
    std::fill(end - missing, end, std::byte{0});
    EXPECT_EQ(load(rig, item), Got::kMiss) << missing;
  }
}

TEST(ObjectDamage, ADamagedTagIsAMissAndAlsoOfAValueWithoutBytes) {
  ClientRig rig(16 * kMiB);
  const std::vector<Item> items = {{"k", 5000}, {"empty", 0}};
  ASSERT_TRUE(rig.put(items).ok);
  for (const Item& item : items) {
    EXPECT_EQ(load(rig, item), Got::kRight);
    record_of(rig, item).tag ^= 1;
    EXPECT_EQ(load(rig, item), Got::kMiss) << item.key;
  }
  EXPECT_EQ(rig.client.snapshot().store.num_damaged_total, 2U);
}

TEST(ObjectDamage, AKeyThatIsAskedForTwiceIsAMissTwice) {
  ClientRig rig(16 * kMiB);
  const std::vector<Item> items = {{"k", 5000}, {"k", 5000}};
  ASSERT_TRUE(rig.put(items).ok);
  flip_bit(place_of(rig.client.store(), items[0]), 0);
  auto buffers = buffers_for(items);
  EXPECT_EQ(rig.await(rig.get(items, buffers)).found, (std::vector<bool>{false, false}));
  rig.client.store().check_invariants();
}

TEST(ObjectDamage, IsLoadedWithoutAQuestionWhereNobodyChecks) {
  ClientRig unchecked(make_store(16 * kMiB), 1, Verification::kOff);
  const Item item{"k", 5000};
  ASSERT_TRUE(unchecked.put({item}).ok);
  EXPECT_EQ(record_of(unchecked, item).tag, gpu::kNoTag);
  flip_bit(place_of(unchecked.client.store(), item), 0);
  EXPECT_EQ(load(unchecked, item), Got::kWrong);
}

TEST(ObjectDamage, SaysSoOfTheFirstOnesOnly) {
  ClientRig rig(16 * kMiB);
  const auto items = numbered("v", 2 * ObjectStore::kMostWarnings, 5000);
  ASSERT_TRUE(rig.put(items).ok);
  for (const Item& item : items) flip_bit(place_of(rig.client.store(), item), 0);
  auto buffers = buffers_for(items);
  EXPECT_EQ(rig.await(rig.get(items, buffers)).found, std::vector<bool>(items.size(), false));
  EXPECT_EQ(rig.client.snapshot().store.num_damaged_total, items.size());
  EXPECT_EQ(rig.client.store().take_warnings().size(), ObjectStore::kMostWarnings);
}

class SharedDamage : public SharedStoreFixture {};

TEST_F(SharedDamage, WhatOneStoreFindsDamagedNoStoreServes) {
  auto a = std::make_unique<ClientRig>(open(), 2);
  ClientRig b(open(), 2);
  const std::vector<Item> items = numbered("v", 2, 100'000);
  ASSERT_TRUE(a->put(items).ok);
  for (const Item& item : items) {
    ASSERT_TRUE(eventually([&] { return has(b.client.store(), item.key); }));
  }
  std::byte* const place = place_of(a->client.store(), items[0]);
  flip_bit(place, 99);
  EXPECT_EQ(load(b, items[0]), Got::kMiss);
  EXPECT_FALSE(has(b.client.store(), items[0].key));
  const auto lines = b.client.store().take_warnings();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("not this server's"), std::string::npos) << lines[0];
  // The owner learns of it.
  EXPECT_TRUE(eventually([&] { return !has(a->client.store(), items[0].key); }));
  EXPECT_EQ(load(*a, items[1]), Got::kRight);
  ClientRig c(open(), 2);
  EXPECT_EQ(load(c, items[0]), Got::kMiss);
  // Whoever computes it again stores it again.
  ASSERT_TRUE(b.put(items).ok);
  EXPECT_EQ(load(b, items[0]), Got::kRight);
  EXPECT_TRUE(eventually([&] { return load(*a, items[0]) == Got::kRight; }));
  for (ClientRig* rig : {a.get(), &b, &c}) rig->client.store().check_invariants();
}

TEST_F(SharedDamage, ADamagedSlotStaysOutOfUseAfterItsStoreHasEnded) {
  const Item item{"k", kMiB};
  std::uint64_t offset = 0;
  const auto offset_of = [](ClientRig& rig, const Item& of) {
    ObjectStore& store = rig.client.store();
    return static_cast<std::uint64_t>(place_of(store, of) - store.memory().chunk(ChunkId(0)));
  };
  {
    ClientRig rig(open(), 2);
    ASSERT_TRUE(rig.put({item}).ok);
    offset = offset_of(rig, item);
    flip_bit(place_of(rig.client.store(), item), 99);
    EXPECT_EQ(load(rig, item), Got::kMiss);
  }
  ClientRig rig(open(), 2);
  EXPECT_EQ(load(rig, item), Got::kMiss);
  // All chunks but that one.
  const auto more = numbered("more", 14, kMiB);
  ASSERT_TRUE(eventually([&] { return rig.put(more).ok; }));
  for (const Item& one : more) EXPECT_NE(offset_of(rig, one), offset) << one.key;
  rig.client.store().check_invariants();
}

TEST_F(SharedDamage, AStoreThatMakesNoTagsSharesWithOneThatChecks) {
  ClientRig unchecked(open(), 1, Verification::kOff);
  ClientRig checked(open(), 1);
  ASSERT_TRUE(unchecked.put({{"a", 5000}}).ok);
  ASSERT_TRUE(checked.put({{"b", 5000}}).ok);
  EXPECT_TRUE(eventually([&] { return load(checked, {"a", 5000}) == Got::kRight; }));
  EXPECT_TRUE(eventually([&] { return load(unchecked, {"b", 5000}) == Got::kRight; }));
}

/// Random operations of clients on one memory, beside a program that damages it.
class DamagedLife {
 public:
  DamagedLife(std::uint64_t seed, std::vector<std::unique_ptr<ClientRig>> rigs)
      : random_(seed), rigs_(std::move(rigs)) {}

  void step() {
    ClientRig& rig = *rigs_[random_() % rigs_.size()];
    switch (random_() % 8) {
      case 0:
      case 1:
        EXPECT_TRUE(rig.put(some_items()).ok);
        return;
      case 2:
        rig.await(rig.client.submit_delete(keys_of(some_items())));
        return;
      case 3:
        return damage(rig);
      default:
        return get(rig);
    }
  }
  /// Everything that is left.
  void end() {
    for (const auto& rig : rigs_) {
      for (int number = 0; number < kNumKeys; ++number) {
        for (const std::uint64_t bytes : kSizesOfItems) {
          EXPECT_NE(load(*rig, {key(number), bytes}), Got::kWrong);
        }
      }
    }
    for (const auto& rig : rigs_) rig->client.store().check_invariants();
  }
  /// By each store. The owner of a value may find what another one has found before it heard of it.
  [[nodiscard]] std::vector<std::uint64_t> num_found() const {
    std::vector<std::uint64_t> found;
    for (const auto& rig : rigs_) {
      found.push_back(rig->client.snapshot().store.num_damaged_total);
    }
    return found;
  }
  [[nodiscard]] std::uint64_t num_made() const { return num_made_; }
  [[nodiscard]] std::uint64_t num_right() const { return num_right_; }

 private:
  static constexpr int kNumKeys = 30;
  static constexpr std::uint64_t kSizesOfItems[] = {100, 4096, 30'001, 120'000};

  static std::string key(int number) {
    return std::string(number % 3 == 0 ? 250 : 5, 'k') + std::to_string(number);
  }
  std::vector<Item> some_items() {
    std::vector<Item> some(random_() % 4 + 1);
    for (Item& item : some) {
      const int number = static_cast<int>(random_() % kNumKeys);
      item = {key(number), kSizesOfItems[number % std::size(kSizesOfItems)]};
    }
    return some;
  }
  void damage(ClientRig& rig) {
    const Item item = some_items().front();
    std::byte* const place = place_of(rig.client.store(), item);
    // Twice in one value could be none.
    if (place == nullptr || !damaged_.emplace(place, item.key).second) return;
    ++num_made_;
    if (random_() % 4 == 0) {
      const ObjectStore& store = rig.client.store();
      record_at(store.memory(), place, item)->tag ^= std::uint64_t{1} << (random_() % 64);
    } else {
      flip_bit(place, random_() % (8 * item.bytes));
    }
  }
  void get(ClientRig& rig) {
    const std::vector<Item> items = some_items();
    std::vector<bool> is_whole;
    for (const Item& item : items) {
      const std::byte* const place = place_of(rig.client.store(), item);
      is_whole.push_back(place != nullptr && !damaged_.contains({place, item.key}));
    }
    auto buffers = buffers_for(items);
    const Completion got = rig.await(rig.get(items, buffers));
    ASSERT_TRUE(got.ok);
    for (std::size_t i = 0; i < items.size(); ++i) {
      ASSERT_TRUE(got.found->at(i) || !is_whole[i] || rigs_.size() > 1) << items[i].key;
      if (!got.found->at(i)) continue;
      ASSERT_TRUE(is_value_of(buffers[i], items[i].key)) << items[i].key;
      ++num_right_;
    }
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<ClientRig>> rigs_;
  /// Places, and the key that had each.
  std::set<std::pair<const std::byte*, std::string>> damaged_;
  std::uint64_t num_made_ = 0;
  std::uint64_t num_right_ = 0;
};

/// Plays the life to its end. Many values are right, and many are found damaged, but no more than
/// were made so.
void play(DamagedLife& life) {
  for (int i = 0; i < 800 && !testing::Test::HasFailure(); ++i) life.step();
  life.end();
  EXPECT_GT(life.num_right(), 100U);
  for (const std::uint64_t found : life.num_found()) {
    EXPECT_GT(found, 10U);
    EXPECT_LE(found, life.num_made());
  }
}

TEST(ObjectDamageModel, NoDamageIsServedAndNoneIsInvented) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<std::unique_ptr<ClientRig>> rigs;
    rigs.push_back(std::make_unique<ClientRig>(64 * kMiB));
    DamagedLife life(seed, std::move(rigs));
    play(life);
    if (testing::Test::HasFailure()) return;
  }
}

TEST_F(SharedDamage, NoDamageIsServedByStoresThatShareAndNoneIsInvented) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::filesystem::remove(path_);
    std::vector<std::unique_ptr<ClientRig>> rigs;
    rigs.reserve(2);
    for (int i = 0; i < 2; ++i) {
      rigs.push_back(std::make_unique<ClientRig>(open(options(64 * kMiB)), 2));
    }
    DamagedLife life(seed, std::move(rigs));
    play(life);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvferry::lmcache
