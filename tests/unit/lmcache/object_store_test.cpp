// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/object_store.hpp"

#include "kvferry/base/test_hooks.hpp"

#include "store_rig.hpp"

#include <gtest/gtest.h>

#include <new>
#include <set>
#include <string>
#include <vector>

namespace kvferry::lmcache {
namespace {

std::vector<Item> items(const std::string& prefix, int count, std::uint64_t bytes) {
  std::vector<Item> some;
  for (int i = 0; i < count; ++i) some.push_back({prefix + std::to_string(i), bytes});
  return some;
}

TEST(ObjectStore, FindsAValueByItsWholeKeyAndItsSizeOnly) {
  const auto store = make_store(16 * kMiB);
  EXPECT_EQ(put(*store, {{"model@0@0@aa", 5000}}), 1);
  EXPECT_EQ(get(*store, {"model@0@0@aa", 5000}), Got::kRight);
  EXPECT_EQ(get(*store, {"model@0@0@aa", 5001}), Got::kMiss);
  EXPECT_EQ(get(*store, {"model@0@0@aa", 500}), Got::kMiss);
  EXPECT_EQ(get(*store, {"model@0@0@a", 5000}), Got::kMiss);
  EXPECT_EQ(get(*store, {"model@0@0@aaa", 5000}), Got::kMiss);
  EXPECT_TRUE(has(*store, "model@0@0@aa"));
  EXPECT_FALSE(has(*store, "model@0@0@ab"));
  store->check_invariants();
}

TEST(ObjectStore, KeepsValuesOfAnySizeAndKeysOfAnyLength) {
  const auto store = make_store(512 * kMiB);
  std::vector<Item> all;
  for (const std::uint64_t bytes :
       {0UL, 1UL, 255UL, 4096UL, 4097UL, 70000UL, 1048576UL, 5000001UL}) {
    for (const std::size_t length : {0UL, 1UL, 223UL, 224UL, 225UL, 5000UL}) {
      all.push_back({std::string(length, 'k') + (length == 0 ? "" : std::to_string(bytes)), bytes});
    }
  }
  // Only one value can have the empty key.
  std::set<std::string> seen;
  std::erase_if(all, [&](const Item& item) { return !seen.insert(item.key).second; });
  ASSERT_EQ(put(*store, all), static_cast<int>(all.size()));
  for (const Item& item : all) EXPECT_EQ(get(*store, item), Got::kRight) << item.key.size();
  store->check_invariants();
}

TEST(ObjectStore, ShowsNothingOfAValueThatIsBeingWritten) {
  const auto store = make_store(16 * kMiB);
  auto reserved =
      store->reserve(std::vector<std::string_view>{"a"}, std::vector<std::uint64_t>{100});
  ASSERT_TRUE(reserved.ok());
  EXPECT_FALSE(has(*store, "a"));
  EXPECT_EQ(get(*store, {"a", 100}), Got::kMiss);
  EXPECT_FALSE(forget(*store, "a"));
  // The second writer of a key has nothing to do.
  EXPECT_EQ(put(*store, {{"a", 100}, {"b", 100}}), 1);
  store->abort(std::move(reserved).value());
  EXPECT_FALSE(has(*store, "a"));
  EXPECT_TRUE(has(*store, "b"));
  EXPECT_EQ(put(*store, {{"a", 100}}), 1);
  EXPECT_EQ(get(*store, {"a", 100}), Got::kRight);
  store->check_invariants();
}

TEST(ObjectStore, KeepsWhatItHasWhenAKeyComesAgainWithTheSameSize) {
  const auto store = make_store(16 * kMiB);
  EXPECT_EQ(put(*store, {{"a", 9000}, {"b", 9000}, {"a", 9000}}), 2);
  EXPECT_EQ(put(*store, {{"b", 9000}, {"c", 9000}, {"a", 9000}}), 1);
  EXPECT_EQ(store->snapshot().num_objects, 3U);
  store->check_invariants();
}

TEST(ObjectStore, ReplacesAValueOfAnotherSize) {
  const auto store = make_store(16 * kMiB);
  // In the same class of slots, and in another.
  for (const std::uint64_t bytes : {9000UL, 9001UL, 200000UL, 10UL}) {
    EXPECT_EQ(put(*store, {{"a", bytes}}), 1);
    EXPECT_EQ(get(*store, {"a", bytes}), Got::kRight);
    EXPECT_EQ(store->snapshot().num_objects, 1U);
  }
  EXPECT_EQ(get(*store, {"a", 9000}), Got::kMiss);
  store->check_invariants();
}

TEST(ObjectStore, TakesNoKeyForAnotherOfTheSameDigest) {
  const auto same = [](std::string_view) { return digest_of("all"); };
  const auto store = make_store(16 * kMiB, cpu_tier::Eviction::kLru, same);
  EXPECT_EQ(put(*store, {{"a", 9000}}), 1);
  EXPECT_FALSE(has(*store, "b"));
  EXPECT_EQ(get(*store, {"b", 9000}), Got::kMiss);
  EXPECT_FALSE(forget(*store, "b"));
  EXPECT_TRUE(has(*store, "a"));
  // They share a place: the last one has it.
  EXPECT_EQ(put(*store, {{"b", 9000}}), 1);
  EXPECT_FALSE(has(*store, "a"));
  EXPECT_EQ(get(*store, {"b", 9000}), Got::kRight);
  EXPECT_EQ(put(*store, {{"c", 20000}}), 1);
  EXPECT_EQ(get(*store, {"b", 9000}), Got::kMiss);
  EXPECT_EQ(get(*store, {"c", 20000}), Got::kRight);
  store->check_invariants();
}

TEST(ObjectStore, EvictsTheLeastRecentWhenItIsFull) {
  const auto store = make_store(16 * kMiB);
  const std::vector<Item> first = items("first", 8, kMiB);
  EXPECT_EQ(put(*store, first), 8);
  for (int i = 0; i < 100; ++i) {
    // What is asked for stays.
    ASSERT_TRUE(has(*store, "first3")) << i;
    ASSERT_EQ(put(*store, items("more" + std::to_string(i), 2, kMiB)), 2);
  }
  EXPECT_EQ(get(*store, first[3]), Got::kRight);
  EXPECT_EQ(get(*store, first[2]), Got::kMiss);
  const StoreSnapshot now = store->snapshot();
  EXPECT_LE(now.slot_bytes, 16 * kMiB);
  EXPECT_GT(now.num_evicted_total, 150U);
  store->check_invariants();
}

TEST(ObjectStore, RefusesAllOfABatchThatItCannotHaveAllOf) {
  const auto store = make_store(16 * kMiB);
  EXPECT_EQ(put(*store, items("large", 100, kMiB)), -1);
  EXPECT_EQ(put(*store, {{"small", 100}, {"too large", 32 * kMiB}}), -1);
  EXPECT_FALSE(has(*store, "small"));
  EXPECT_EQ(store->snapshot().slot_bytes, 0U);

  // Everything is in use: neither another class's chunks nor its own slots are to be had.
  std::vector<Item> all = items("held", 12, kMiB);
  ASSERT_EQ(put(*store, all), 12);
  ReadableValues leases = store->lease(keys_of(all), sizes_of(all));
  EXPECT_EQ(put(*store, {{"small", 100}, {"x1", kMiB}, {"x2", kMiB}, {"x3", kMiB}, {"x4", kMiB}}),
            -1);
  EXPECT_FALSE(has(*store, "small"));
  store->check_invariants();
  for (const Item& item : all) EXPECT_EQ(get(*store, item), Got::kRight);
  store->release(std::move(leases));
  EXPECT_EQ(put(*store, {{"small", 100}, {"x1", kMiB}, {"x2", kMiB}, {"x3", kMiB}}), 4);
  EXPECT_GE(store->snapshot().num_refused_total, 2U);
  store->check_invariants();
}

TEST(ObjectStore, KeepsTheBytesOfALeaseThatIsForgottenOrReplaced) {
  const auto store = make_store(16 * kMiB);
  const std::vector<Item> all = items("held", 4, kMiB);
  ASSERT_EQ(put(*store, all), 4);
  ReadableValues leases = store->lease(keys_of(all), sizes_of(all));
  EXPECT_TRUE(forget(*store, "held0"));
  EXPECT_FALSE(forget(*store, "held0"));
  EXPECT_FALSE(has(*store, "held0"));
  EXPECT_EQ(put(*store, {{"held1", 100}}), 1);
  for (int i = 0; i < 30; ++i)
    static_cast<void>(put(*store, items("more" + std::to_string(i), 2, kMiB)));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto value = value_of(all[i].key, all[i].bytes);
    EXPECT_EQ(std::memcmp(leases.places()[i], value.data(), value.size()), 0) << i;
  }
  store->release(std::move(leases));
  store->check_invariants();
}

TEST(ObjectStore, ForgetsAKeyOnceThatIsGivenTwice) {
  const auto store = make_store(16 * kMiB);
  ASSERT_EQ(put(*store, {{"a", 100}, {"b", 100}}), 2);
  EXPECT_EQ(store->forget(std::vector<std::string_view>{"a", "none", "a", "b"}),
            (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(store->snapshot().slot_bytes, 0U);
  store->check_invariants();
}

TEST(ObjectStore, GivesChunksToWhicheverSizesAreStored) {
  const auto store = make_store(64 * kMiB);
  for (int round = 0; round < 4; ++round) {
    const std::string name = std::to_string(round);
    ASSERT_EQ(put(*store, items("small" + name, 1500, 16 * kKiB)), 1500);
    store->check_invariants();
    ASSERT_EQ(put(*store, items("large" + name, 16, 2 * kMiB)), 16);
    store->check_invariants();
    ASSERT_EQ(put(*store, items("tiny" + name, 6000, 1000)), 6000);
    store->check_invariants();
    for (const Item& item : items("large" + name, 16, 2 * kMiB)) {
      EXPECT_NE(get(*store, item), Got::kWrong);
    }
  }
}

TEST(ObjectStore, TakesEverySizeThatThereIs) {
  const auto store = make_store(512 * kMiB);
  std::vector<Item> all;
  for (const SlotSize& slots : store->memory().geometry().sizes) {
    all.push_back({"size" + std::to_string(slots.bytes), slots.bytes});
  }
  for (const Item& item : all) {
    ASSERT_EQ(put(*store, {item}), 1) << item.bytes;
    ASSERT_EQ(get(*store, item), Got::kRight) << item.bytes;
  }
  EXPECT_EQ(store->snapshot().num_size_classes, all.size());
  for (const Item& item : all) EXPECT_NE(get(*store, item), Got::kWrong) << item.bytes;
  store->check_invariants();
}

TEST(ObjectStore, UsesChunksAsTheyBecomeReady) {
  auto memory = empty_memory(16 * kMiB);
  ChunkMemory& chunks = *memory;
  const std::uint64_t chunk_bytes = chunks.geometry().chunk_bytes;
  ObjectStore store(std::move(memory), cpu_tier::Eviction::kAdaptive);
  EXPECT_EQ(put(store, {{"a", kMiB}}), -1);
  chunks.grow(chunk_bytes);
  EXPECT_EQ(put(store, {{"a", kMiB}}), 1);
  EXPECT_EQ(put(store, {{"b", 10}}), 1);
  EXPECT_FALSE(has(store, "a"));
  chunks.grow(2 * chunk_bytes);
  EXPECT_EQ(put(store, {{"a", kMiB}}), 1);
  EXPECT_TRUE(has(store, "b"));
  EXPECT_EQ(store.snapshot().ready_bytes, 3 * chunk_bytes);
  store.check_invariants();
}

TEST(ObjectStore, LeavesNothingBehindWhenMemoryRunsOutOnTheWay) {
  const auto store = make_store(16 * kMiB);
  for (std::uint64_t nth = 1; nth <= 2; ++nth) {
    test_hooks::fail_nth_of("lmcache.reserve", nth);
    EXPECT_THROW(static_cast<void>(put(*store, {{"a", 100}, {"b", kMiB}})), std::bad_alloc);
    EXPECT_EQ(store->snapshot().slot_bytes, 0U);
    store->check_invariants();
  }
  test_hooks::reset();
  EXPECT_EQ(put(*store, {{"a", 100}, {"b", kMiB}}), 2);
}

TEST(ObjectStore, GivesBackWhatItLeasedWhenMemoryRunsOutOnTheWay) {
  const auto store = make_store(16 * kMiB);
  ASSERT_EQ(put(*store, {{"a", 100}, {"b", kMiB}}), 2);
  const std::vector<std::string_view> keys{"a", "b"};
  const std::vector<std::uint64_t> sizes{100, kMiB};
  for (std::uint64_t nth = 1; nth <= 2; ++nth) {
    test_hooks::fail_nth_of("lmcache.lease", nth);
    EXPECT_THROW(static_cast<void>(store->lease(keys, sizes)), std::bad_alloc);
    store->check_invariants();
  }
  test_hooks::reset();
  store->release(store->lease(keys, sizes));
}

}  // namespace
}  // namespace kvferry::lmcache
