// SPDX-License-Identifier: Apache-2.0
// What processes that are killed leave to those that share a file with them.
#include "shared_store_rig.hpp"

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace kvferry::lmcache {
namespace {

class StoreDeaths : public SharedStoreFixture {
 protected:
  /// Until it is killed.
  [[noreturn]] void store_and_forget(std::uint64_t seed) const {
    std::mt19937_64 chance(seed);
    ClientRig rig(open(options(24 * kMiB)), 2);
    for (;;) {
      std::vector<Item> items(chance() % 4 + 1);
      for (Item& item : items) {
        item.key = "k" + std::to_string(chance() % 50);
        item.bytes = (chance() % 3 + 1) * (chance() % 2 == 0 ? 9000 : 500 * kKiB);
      }
      if (chance() % 5 == 0) {
        rig.await(rig.client.submit_delete(keys_of(items)));
      } else {
        rig.put(items);
      }
    }
  }
};

// A worker that was forked and never became another program holds no lock of its parent.
TEST_F(StoreDeaths, AForkedChildDoesNotKeepTheFileInUse) {
  MemoryOptions removed = options();
  removed.shared->at_exit = cpu_tier::AtExit::kRemove;
  auto store = open(removed);
  Child child;
  store.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(child.kill_it());
}

TEST_F(StoreDeaths, NothingHalfWrittenIsServedAndEverySlotComesBack) {
  const std::vector<Item> old = numbered("old", 4, 100 * kKiB);
  std::vector<Item> fresh = numbered("new", 3, 600 * kKiB);
  fresh.push_back({"small", 30 * kKiB});
  for (const std::string point :
       {"tier_directory.record_claimed", "tier_directory.filling", "lmcache.before_part",
        "lmcache.before_commit", "lmcache.tagged", "tier_directory.filling_with_key",
        "tier_directory.published_without_hint", "lmcache.committed_class"}) {
    SCOPED_TRACE(point);
    std::filesystem::remove(path_);
    Child child([&] {
      test_hooks::on_pause(point, [] { ::raise(SIGKILL); });
      ClientRig rig(open(), 2);
      rig.put(fresh);
    });
    const auto store = open();
    ASSERT_EQ(put(*store, old), 4);
    child.begin();
    ASSERT_TRUE(child.dies());
    std::size_t num_new = 0;
    const auto count = [&](ObjectStore& in) {
      num_new = 0;
      for (const Item& item : fresh) {
        const Got got = get(in, item);
        EXPECT_NE(got, Got::kWrong) << item.key;
        num_new += got == Got::kRight ? 1 : 0;
      }
    };
    for (const Item& item : old) EXPECT_EQ(get(*store, item), Got::kRight) << item.key;
    count(*store);
    if (point == "lmcache.committed_class") {
      EXPECT_TRUE(eventually([&] {
        count(*store);
        return num_new == 3;
      })) << "the class that was committed";
    } else {
      EXPECT_EQ(num_new, 0U);
    }
    EXPECT_TRUE(eventually([&] { return put(*store, numbered("all", 15, kMiB)) == 15; }));
    store->check_invariants();
    count(*open());
    EXPECT_EQ(num_new, 0U) << "there was no room for them";
  }
}

TEST_F(StoreDeaths, ServesOnlyWholeValuesBehindDeathsAtRandom) {
  std::mt19937_64 random(11);
  constexpr int kNumRounds = 25;
  std::deque<Child> children;
  for (int round = 0; round < kNumRounds; ++round) {
    children.emplace_back([&, seed = random()] { store_and_forget(seed); });
  }
  std::size_t num_found = 0;
  const auto survivor = open(options(24 * kMiB));
  for (int round = 0; round < kNumRounds; ++round) {
    children[round].begin();
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 60));
    ASSERT_TRUE(children[round].kill_it());
    const auto later = round % 2 == 0 ? nullptr : open(options(24 * kMiB));
    ObjectStore& store = later ? *later : *survivor;
    for (int key = 0; key < 50; ++key) {
      for (const std::uint64_t unit : {std::uint64_t{9000}, 500 * kKiB}) {
        for (std::uint64_t times = 1; times <= 3; ++times) {
          const Got got = get(store, {"k" + std::to_string(key), times * unit});
          ASSERT_NE(got, Got::kWrong) << key << " x " << times * unit << " in round " << round;
          num_found += got == Got::kRight ? 1 : 0;
        }
      }
    }
    static_cast<void>(put(store, numbered("k", 3, 9000)));
    store.check_invariants();
  }
  // How many depends on how far the children came in their time.
  EXPECT_GT(num_found, 0U);
}

}  // namespace
}  // namespace kvferry::lmcache
