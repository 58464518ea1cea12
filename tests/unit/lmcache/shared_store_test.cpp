// SPDX-License-Identifier: Apache-2.0
// Stores of several instances in one file.
#include "kvferry/base/error.hpp"

#include "shared_store_rig.hpp"

#include <cstdint>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace kvferry::lmcache {
namespace {

class SharedStore : public SharedStoreFixture {
 protected:
  static void expect_refused(const MemoryOptions& of, const std::vector<std::string>& words) {
    try {
      static_cast<void>(open(of));
      ADD_FAILURE() << "was served";
    } catch (const ConfigError& error) {
      for (const std::string& word : words) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
            << word << " is not in: " << error.what();
      }
    }
  }
};

TEST_F(SharedStore, ServesWhatAnEarlierOneStored) {
  std::vector<Item> all = numbered("v", 8, kMiB);
  all.push_back({std::string(1000, 'k'), 5000});
  all.push_back({"empty", 0});
  {
    const auto store = open();
    ASSERT_EQ(put(*store, all), 10);
    EXPECT_TRUE(forget(*store, "v3"));
    store->check_invariants();
  }
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  for (int again = 0; again < 2; ++again) {
    const auto store = open();
    EXPECT_EQ(store->snapshot().num_objects_of_others, 9U);
    for (const Item& item : all) {
      EXPECT_EQ(get(*store, item), item.key == "v3" ? Got::kMiss : Got::kRight) << item.key;
    }
    store->check_invariants();
  }
  // It goes on as any other, and has by and by what the earlier one left.
  const auto store = open();
  for (int i = 0; i < 50; ++i) ASSERT_EQ(put(*store, {{"new" + std::to_string(i), kMiB}}), 1) << i;
  EXPECT_EQ(get(*store, {"new49", kMiB}), Got::kRight);
  EXPECT_EQ(get(*store, all[0]), Got::kMiss);
  EXPECT_EQ(store->snapshot().num_objects_of_others, 0U);
  store->check_invariants();
}

TEST_F(SharedStore, LeavesNothingBehindTheLastIfThatIsWanted) {
  MemoryOptions removed = options();
  removed.shared->at_exit = cpu_tier::AtExit::kRemove;
  auto store = open(removed);
  EXPECT_TRUE(std::filesystem::exists(path_));
  store.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SharedStore, WhatOneHoldsAnotherServesAndDoesNotStoreAgain) {
  const auto a = open();
  const auto b = open();
  const std::vector<Item> all = {{"small", 100}, {"large", kMiB}, {std::string(1000, 'k'), 30000}};
  ASSERT_EQ(put(*a, all), 3);
  for (const Item& item : all) {
    EXPECT_TRUE(eventually([&] { return has(*b, item.key); })) << item.key;
    EXPECT_EQ(get(*b, item), Got::kRight) << item.key;
    EXPECT_EQ(get(*b, {item.key, item.bytes + 1}), Got::kMiss) << item.key;
  }
  EXPECT_EQ(put(*b, all), 0);
  EXPECT_EQ(b->snapshot().num_objects, 0U);
  EXPECT_EQ(b->snapshot().num_objects_of_others, 3U);
  EXPECT_EQ(b->snapshot().chunk_bytes, 0U);
  b->check_invariants();
}

TEST_F(SharedStore, AKeyThatAnotherHoldsWithAnotherSizeIsStoredBesideIt) {
  const auto a = open();
  const auto b = open();
  // In the same class of slots, and in another.
  for (const std::uint64_t bytes : {9001UL, 200000UL}) {
    const std::string key = "k" + std::to_string(bytes);
    ASSERT_EQ(put(*a, {{key, 9000}}), 1);
    ASSERT_TRUE(eventually([&] { return get(*b, {key, 9000}) == Got::kRight; }));
    EXPECT_EQ(put(*b, {{key, bytes}}), 1);
    EXPECT_EQ(get(*b, {key, bytes}), Got::kRight);
    EXPECT_EQ(get(*a, {key, 9000}), Got::kRight);
  }
  b->check_invariants();
}

TEST_F(SharedStore, OnlyWhoHoldsAKeyForgetsIt) {
  const auto a = open();
  const auto b = open();
  ASSERT_EQ(put(*a, {{"k", 100}}), 1);
  ASSERT_TRUE(eventually([&] { return has(*b, "k"); }));
  EXPECT_TRUE(forget(*b, "k")) << "nothing of it is b's";
  EXPECT_EQ(get(*b, {"k", 100}), Got::kRight);
  EXPECT_TRUE(forget(*a, "k"));
  EXPECT_FALSE(has(*a, "k"));
  EXPECT_TRUE(eventually([&] { return a->snapshot().slot_bytes == 0; }))
      << "nobody asks for it any more";
  EXPECT_FALSE(has(*b, "k"));
}

TEST_F(SharedStore, TakesNoKeyOfAnotherForOneOfTheSameDigest) {
  const auto same = [](std::string_view) { return digest_of("all"); };
  const auto a = open(same);
  const auto b = open(same);
  ASSERT_EQ(put(*a, {{"a", 9000}}), 1);
  ASSERT_TRUE(eventually([&] { return has(*b, "a"); }));
  EXPECT_FALSE(has(*b, "b"));
  EXPECT_EQ(get(*b, {"b", 9000}), Got::kMiss);
  EXPECT_FALSE(forget(*b, "b"));
  EXPECT_EQ(put(*b, {{"b", 9000}}), 1);
  EXPECT_EQ(get(*b, {"b", 9000}), Got::kRight);
  EXPECT_NE(get(*b, {"a", 9000}), Got::kWrong);
  EXPECT_EQ(get(*a, {"a", 9000}), Got::kRight);
  EXPECT_NE(get(*a, {"b", 9000}), Got::kWrong);
}

TEST_F(SharedStore, LearnsTheSizesOfOthers) {
  const auto a = open();
  const auto before = open();
  std::vector<Item> all;
  for (const std::uint64_t bytes : {0UL, 20000UL, 40000UL, 100000UL, 300000UL, 700000UL}) {
    all.push_back({"size" + std::to_string(bytes), bytes});
  }
  ASSERT_EQ(put(*a, all), 6);
  const auto after = open();
  for (const Item& item : all) {
    EXPECT_TRUE(has(*after, item.key)) << item.key;
    EXPECT_TRUE(eventually([&] { return get(*before, item) == Got::kRight; })) << item.key;
  }
}

TEST_F(SharedStore, KeepsWhatIsInChunksThatItTakesOver) {
  std::vector<Item> all;
  for (const std::uint64_t bytes : {20000UL, 100000UL, 300000UL}) {
    for (int i = 0; i < 4000000 / static_cast<int>(bytes); ++i) {
      all.push_back({std::to_string(bytes) + "-" + std::to_string(i), bytes});
    }
  }
  ASSERT_EQ(put(*open(), all), static_cast<int>(all.size()));
  const auto store = open();
  // More than what is free.
  ASSERT_EQ(put(*store, numbered("new", 3, 900000)), 3);
  std::size_t num_held = 0;
  for (const Item& item : all) {
    const Got got = get(*store, item);
    EXPECT_NE(got, Got::kWrong);
    num_held += got == Got::kRight ? 1 : 0;
  }
  EXPECT_GT(store->snapshot().num_objects, 3U);
  EXPECT_GT(num_held, all.size() / 2);
  store->check_invariants();
}

TEST_F(SharedStore, ReplacesAKeyThatComesWithAChunk) {
  {
    const auto store = open();
    ASSERT_EQ(put(*store, {{"k", 9000}}), 1);
    ASSERT_EQ(put(*store, numbered("v", 14, kMiB)), 14);
  }
  const auto store = open();
  EXPECT_EQ(put(*store, {{"k", 9001}, {"other", 9001}}), 2);
  EXPECT_EQ(get(*store, {"k", 9001}), Got::kRight);
  EXPECT_EQ(get(*store, {"k", 9000}), Got::kMiss);
  store->check_invariants();
}

TEST_F(SharedStore, WhoHasNothingIsGivenRoomByWhoHasAll) {
  const auto a = open();
  const auto b = open();
  ASSERT_EQ(put(*a, numbered("a", 15, kMiB)), 15);
  EXPECT_TRUE(eventually([&] { return put(*b, {{"b", kMiB}}) == 1; }));
  EXPECT_EQ(get(*b, {"b", kMiB}), Got::kRight);
  EXPECT_GE(a->snapshot().num_objects, 10U) << "of what was not needed nothing was given";
}

TEST_F(SharedStore, LetsGoOfWhatItFoundWhenNobodyAsks) {
  const auto a = open();
  const auto b = open();
  ASSERT_EQ(put(*a, numbered("a", 15, kMiB)), 15);
  for (const Item& item : numbered("a", 15, kMiB)) {
    ASSERT_TRUE(eventually([&] { return has(*b, item.key); }));
  }
  EXPECT_TRUE(eventually([&] { return put(*a, numbered("new", 15, kMiB)) == 15; }));
}

TEST_F(SharedStore, TakesNoMoreThanItsLimit) {
  MemoryOptions limited = options();
  limited.shared->bytes_limit = 3 * kMiB;
  const auto store = open(limited);
  EXPECT_EQ(put(*store, numbered("v", 3, kMiB)), -1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(put(*store, {{"v" + std::to_string(i), kMiB}}), 1);
  EXPECT_EQ(store->snapshot().chunk_bytes, 2 * store->memory().geometry().chunk_bytes);
}

TEST_F(SharedStore, TakesAFileAsItIsDividedUnlessItIsToldHow) {
  MemoryOptions told = options();
  told.shared->chunk_bytes = 2 * kMiB;
  const auto store = open(told);
  ASSERT_EQ(put(*store, {{"v", 1900 * kKiB}}), 1);
  const auto other = open();
  EXPECT_EQ(other->memory().geometry().chunk_bytes, 2 * kMiB);
  EXPECT_EQ(get(*other, {"v", 1900 * kKiB}), Got::kRight);
  told.shared->chunk_bytes = kMiB;
  expect_refused(told, {path_.string(), "8 chunks of 2097152 bytes", "16 chunks of 1048576 bytes",
                        "shared_chunk_bytes"});
  expect_refused(options(32 * kMiB), {"16777216 bytes", "33554432 bytes", "capacity"});
}

TEST_F(SharedStore, ServesNoRecordThatAnotherProgramChanged) {
  const auto store = open();
  const std::vector<Item> all = {{"short", 100}, {std::string(1000, 'k'), 100}};
  ASSERT_EQ(put(*store, all), 2);
  const StoreGeometry& geometry = store->memory().geometry();
  const std::uint32_t num_slots = geometry.sizes[*geometry.size_for(100, 5)].num_slots;
  for (const std::uint64_t nonsense : {UINT64_MAX, UINT64_MAX - 500, std::uint64_t{1} << 40U}) {
    for (ChunkId chunk; chunk.value() < geometry.num_chunks; chunk = chunk.next()) {
      for (std::uint32_t i = 0; i < num_slots; ++i) {
        store->memory().record(chunk, i).value_bytes = nonsense;
      }
    }
    for (const Item& item : all) EXPECT_EQ(get(*store, item), Got::kMiss);
    EXPECT_FALSE(has(*store, all[1].key));
  }
}

TEST_F(SharedStore, GoesOnWhileAnotherProcessIsStopped) {
  Child other([&] {
    test_hooks::on_pause("lmcache.before_commit", [] { ::raise(SIGSTOP); });
    ClientRig rig(open(), 2);
    rig.put(numbered("a", 2, 600 * kKiB));
  });
  const auto store = open();
  other.begin();
  ASSERT_TRUE(other.stops());
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(put(*store, {{"b" + std::to_string(i), 600 * kKiB}}), 1) << i;
  }
  EXPECT_FALSE(has(*store, "a0")) << "is being written";
  EXPECT_TRUE(other.kill_it());
  EXPECT_EQ(get(*store, {"b29", 600 * kKiB}), Got::kRight);
}

}  // namespace
}  // namespace kvferry::lmcache
