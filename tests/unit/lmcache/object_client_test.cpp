// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/object_client.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "client_rig.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <random>
#include <thread>

namespace kvferry::lmcache {
namespace {

class ObjectClientTest : public testing::Test {
 protected:
  ~ObjectClientTest() override { test_hooks::reset(); }
};

/// Holds whoever passes a pause point.
class Barrier {
 public:
  explicit Barrier(std::string name) : name_(std::move(name)) {
    test_hooks::on_pause(name_, [state = state_] {
      ++state->num_held;
      while (!state->open) std::this_thread::yield();
    });
  }
  ~Barrier() {
    open();
    test_hooks::on_pause(name_, {});
  }
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  void await(int count) const {
    while (state_->num_held < count) std::this_thread::yield();
  }
  void open() { state_->open = true; }

 private:
  struct State {
    std::atomic<bool> open = false;
    std::atomic<int> num_held = 0;
  };
  const std::string name_;
  /// Those who are held may leave after this is gone.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST_F(ObjectClientTest, BringsBackWhatWasStoredInBatchesOfEverySize) {
  ClientRig rig(256 * kMiB);
  for (const std::uint64_t bytes : {4 * kKiB, 256 * kKiB, kMiB, 4 * kMiB + 3}) {
    for (const int count : {1, 3, 16}) {
      const auto items =
          numbered(std::to_string(bytes) + "x" + std::to_string(count), count, bytes);
      const Completion stored = rig.put(items);
      ASSERT_TRUE(stored.ok) << stored.error;
      EXPECT_FALSE(stored.found.has_value());
      auto buffers = buffers_for(items);
      const Completion got = rig.await(rig.get(items, buffers));
      EXPECT_TRUE(got.ok);
      EXPECT_EQ(got.found, std::vector<bool>(items.size(), true));
      for (std::size_t i = 0; i < items.size(); ++i) {
        ASSERT_EQ(buffers[i], value_of(items[i].key, bytes)) << items[i].key;
      }
    }
  }
  rig.client.store().check_invariants();
}

TEST_F(ObjectClientTest, SaysForEachKeyWhetherItWasThereAndLeavesOtherBuffersAlone) {
  ClientRig rig(64 * kMiB);
  ASSERT_TRUE(rig.put({{"a", 5000}, {"b", kMiB}, {"c", 0}}).ok);
  const std::vector<Item> asked = {{"b", kMiB}, {"none", 77}, {"a", 4999}, {"a", 5000}, {"c", 0}};
  auto buffers = buffers_for(asked);
  const Completion got = rig.await(rig.get(asked, buffers));
  EXPECT_TRUE(got.ok);
  EXPECT_EQ(got.found, (std::vector<bool>{true, false, false, true, true}));
  EXPECT_EQ(buffers[1], std::vector<std::byte>(77, std::byte{0xee}));
  EXPECT_EQ(buffers[2], std::vector<std::byte>(4999, std::byte{0xee}));
  EXPECT_EQ(buffers[3], value_of("a", 5000));

  const std::vector<std::string_view> keys = {"a", "none", "c"};
  EXPECT_EQ(rig.await(rig.client.submit_exists(keys)).found,
            (std::vector<bool>{true, false, true}));
  EXPECT_EQ(rig.await(rig.client.submit_delete(keys)).found,
            (std::vector<bool>{true, false, true}));
  EXPECT_EQ(rig.await(rig.client.submit_exists(keys)).found,
            (std::vector<bool>{false, false, false}));
  const ClientSnapshot now = rig.client.snapshot();
  EXPECT_EQ(now.num_hits_total, 3U);
  EXPECT_EQ(now.num_misses_total, 2U);
  EXPECT_EQ(now.loaded_bytes_total, kMiB + 5000);
  EXPECT_EQ(now.num_open, 0U);
}

TEST_F(ObjectClientTest, CompletesABatchWithoutKeys) {
  ClientRig rig(16 * kMiB);
  EXPECT_TRUE(rig.put({}).ok);
  EXPECT_EQ(rig.await(rig.client.submit_get({}, {})).found, std::vector<bool>{});
}

TEST_F(ObjectClientTest, SignalsWhileThereAreCompletions) {
  ClientRig rig(16 * kMiB);
  const int descriptor = rig.client.event_fd();
  EXPECT_FALSE(readable(descriptor));
  const std::vector<std::string_view> keys = {"a"};
  rig.client.submit_exists(keys);
  rig.client.submit_exists(keys);
  EXPECT_TRUE(readable(descriptor));
  EXPECT_EQ(rig.client.drain().size(), 2U);
  EXPECT_FALSE(readable(descriptor));
  rig.client.submit_exists(keys);
  EXPECT_TRUE(readable(descriptor));
  EXPECT_EQ(rig.client.drain().size(), 1U);
  EXPECT_TRUE(rig.client.drain().empty());
}

TEST_F(ObjectClientTest, RefusesABatchThatHasNoRoomAndGoesOn) {
  ClientRig rig(16 * kMiB);
  const Completion refused = rig.put(numbered("large", 40, kMiB));
  EXPECT_FALSE(refused.ok);
  EXPECT_NE(refused.error.find("capacity"), std::string::npos) << refused.error;
  EXPECT_FALSE(rig.put({{"too large", 17 * kMiB}}).ok);
  EXPECT_TRUE(rig.put({{"small", kKiB}}).ok);
  EXPECT_EQ(rig.client.snapshot().num_failed_total, 2U);
  rig.client.store().check_invariants();
}

TEST_F(ObjectClientTest, AcceptsNothingWhenMemoryRunsOutInASubmission) {
  ClientRig rig(16 * kMiB);
  ASSERT_TRUE(rig.put({{"a", 5000}}).ok);
  const std::vector<Item> asked = {{"a", 5000}};
  auto buffers = buffers_for(asked);
  for (const char* const point : {"lmcache.reserve", "lmcache.set"}) {
    test_hooks::fail_nth_of(point, 1);
    EXPECT_THROW(static_cast<void>(rig.set({{"b", 9}}, {value_of("b", 9)})), std::bad_alloc)
        << point;
  }
  test_hooks::fail_nth_of("lmcache.get", 1);
  EXPECT_THROW(static_cast<void>(rig.get(asked, buffers)), std::bad_alloc);
  EXPECT_EQ(rig.client.snapshot().num_open, 0U);
  EXPECT_FALSE(readable(rig.client.event_fd()));
  test_hooks::reset();
  EXPECT_TRUE(rig.put({{"b", 9}}).ok);
  rig.client.store().check_invariants();
}

TEST_F(ObjectClientTest, GivesUpWhatHasNotBegunWhenItIsClosed) {
  ClientRig rig(256 * kMiB, 1);
  const auto held = numbered("held", 4, 4 * kMiB);
  ASSERT_TRUE(rig.put(held).ok);
  auto values = std::make_unique<std::vector<std::vector<std::byte>>>();
  const auto more = numbered("more", 4, 4 * kMiB);
  for (const Item& item : more) values->push_back(value_of(item.key, item.bytes));
  auto buffers = std::make_unique<std::vector<std::vector<std::byte>>>(buffers_for(held));

  Barrier barrier("lmcache.before_part");
  const BatchId set = rig.set(more, *values);
  const BatchId get = rig.get(held, *buffers);
  barrier.await(1);
  std::promise<void> closed;
  std::thread closing([&] {
    rig.client.close();
    closed.set_value();
  });
  auto is_closed = closed.get_future();
  // Somebody is in a buffer: close() waits for it.
  EXPECT_EQ(is_closed.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  barrier.open();
  closing.join();
  // Nobody touches them any more: a sanitizer would see it.
  values.reset();
  buffers.reset();

  const Completion set_end = rig.await(set);
  const Completion get_end = rig.await(get);
  EXPECT_FALSE(set_end.ok);
  EXPECT_FALSE(get_end.ok);
  EXPECT_NE(set_end.error.find("closed"), std::string::npos);
  EXPECT_EQ(get_end.found, std::vector<bool>(4, false));
  EXPECT_FALSE(has(rig.client.store(), "more0"));
  EXPECT_TRUE(has(rig.client.store(), "held0"));
  EXPECT_THROW(static_cast<void>(rig.put({{"x", 1}})), Error);
  EXPECT_THROW(static_cast<void>(rig.client.submit_exists({})), Error);
  rig.client.close();
  rig.client.store().check_invariants();
}

TEST_F(ObjectClientTest, ServesALoadBeforeTheStoresThatWait) {
  ClientRig rig(512 * kMiB, 1);
  const auto held = numbered("held", 1, 4 * kMiB);
  ASSERT_TRUE(rig.put(held).ok);
  const auto large = numbered("large", 16, 8 * kMiB);
  std::vector<std::vector<std::byte>> values;
  for (const Item& item : large) values.push_back(value_of(item.key, item.bytes));
  auto buffers = buffers_for(held);
  BatchId set;
  BatchId get;
  {
    Barrier barrier("lmcache.before_part");
    set = rig.set(large, values);
    barrier.await(1);
    get = rig.get(held, buffers);
  }
  // 128 MiB are before it.
  EXPECT_TRUE(rig.await(set).ok);
  EXPECT_TRUE(rig.await(get).ok);
  EXPECT_EQ(std::vector<BatchId>(rig.order.end() - 2, rig.order.end()),
            (std::vector<BatchId>{get, set}));
}

TEST_F(ObjectClientTest, LoadsWholeValuesThatAreDeletedMeanwhile) {
  ClientRig rig(256 * kMiB, 2);
  const auto items = numbered("v", 4, 4 * kMiB);
  ASSERT_TRUE(rig.put(items).ok);
  auto buffers = buffers_for(items);
  BatchId get;
  {
    Barrier barrier("lmcache.before_part");
    get = rig.get(items, buffers);
    barrier.await(1);
    EXPECT_EQ(rig.await(rig.client.submit_delete(keys_of(items))).found,
              std::vector<bool>(4, true));
  }
  EXPECT_EQ(rig.await(get).found, std::vector<bool>(4, true));
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_TRUE(is_value_of(buffers[i], items[i].key));
  }
}

TEST_F(ObjectClientTest, ShowsNothingOfASetBeforeAllOfItIsCopied) {
  ClientRig rig(256 * kMiB, 2);
  const auto items = numbered("v", 4, 4 * kMiB);
  std::vector<std::vector<std::byte>> values;
  for (const Item& item : items) values.push_back(value_of(item.key, item.bytes));
  Barrier barrier("lmcache.before_commit");
  const BatchId set = rig.set(items, values);
  barrier.await(1);
  EXPECT_EQ(rig.await(rig.client.submit_exists(keys_of(items))).found, std::vector<bool>(4, false));
  auto buffers = buffers_for(items);
  EXPECT_EQ(rig.await(rig.get(items, buffers)).found, std::vector<bool>(4, false));
  EXPECT_EQ(buffers, buffers_for(items));
  barrier.open();
  EXPECT_TRUE(rig.await(set).ok);
  EXPECT_EQ(rig.await(rig.client.submit_exists(keys_of(items))).found, std::vector<bool>(4, true));
}

TEST_F(ObjectClientTest, WorksWithTheThreadsThatItCouldHave) {
  test_hooks::fail_nth_of("lmcache.thread", 2);
  ClientRig rig(64 * kMiB, 3);
  EXPECT_TRUE(rig.put(numbered("v", 4, 2 * kMiB)).ok);
  test_hooks::fail_nth_of("lmcache.thread", 1);
  EXPECT_THROW(ClientRig(16 * kMiB, 1), ResourceError);
}

/// The threads that LMCache has: one stores, one loads and looks up, one deletes, one drains, and
/// somebody closes in the middle of it.
TEST_F(ObjectClientTest, CompletesEveryBatchOnceUnderAllThreadsAndAClose) {
  for (int round = 0; round < 6; ++round) {
    ClientRig rig(12 * kMiB, 2);
    constexpr std::uint64_t kSizes[] = {4 * kKiB, 100 * kKiB, 500 * kKiB};
    std::atomic<bool> stop = false;
    Mutex mutex;
    std::map<BatchId, std::function<void(const Completion&)>> open;
    std::atomic<std::uint64_t> num_hits = 0;

    // A buffer lives until its completion, as LMCache's do.
    const auto submit = [&](auto&& submission, std::function<void(const Completion&)> ended) {
      MutexLock lock(mutex);
      const BatchId id = submission();
      open.emplace(id, std::move(ended));
    };
    const auto items_of = [&](std::mt19937_64& random) {
      std::vector<Item> items(random() % 4 + 1);
      for (Item& item : items) {
        item.bytes = kSizes[random() % 3];
        item.key = "key" + std::to_string(random() % 40);
      }
      return items;
    };
    const auto loop = [&](std::uint64_t seed, auto&& step) {
      return std::thread([&, seed, step] {
        std::mt19937_64 random(seed);
        try {
          while (!stop) {
            const bool is_full = [&] {
              MutexLock lock(mutex);
              return open.size() > 16;
            }();
            if (is_full) {
              std::this_thread::sleep_for(std::chrono::microseconds(50));
            } else {
              step(random);
            }
          }
        } catch (const Error&) {
          // It was closed.
        }
      });
    };
    std::vector<std::thread> threads;
    threads.push_back(loop(1, [&](std::mt19937_64& random) {
      const auto items = items_of(random);
      auto values = std::make_shared<std::vector<std::vector<std::byte>>>();
      for (const Item& item : items) values->push_back(value_of(item.key, item.bytes));
      submit([&] { return rig.set(items, *values); }, [values](const Completion&) {});
    }));
    threads.push_back(loop(2, [&](std::mt19937_64& random) {
      const auto items = items_of(random);
      auto buffers = std::make_shared<std::vector<std::vector<std::byte>>>(buffers_for(items));
      submit([&] { return rig.get(items, *buffers); },
             [items, buffers, &num_hits](const Completion& completion) {
               for (std::size_t i = 0; i < items.size(); ++i) {
                 if (!completion.found->at(i)) continue;
                 ++num_hits;
                 EXPECT_TRUE(is_value_of(buffers->at(i), items[i].key));
               }
             });
      submit([&] { return rig.client.submit_exists(keys_of(items)); },
             [n = items.size()](const Completion& completion) {
               EXPECT_TRUE(completion.ok);
               EXPECT_EQ(completion.found->size(), n);
             });
    }));
    threads.push_back(loop(3, [&](std::mt19937_64& random) {
      const auto items = items_of(random);
      submit([&] { return rig.client.submit_delete(keys_of(items)); },
             [](const Completion& completion) { EXPECT_TRUE(completion.ok); });
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }));
    const auto drain = [&] {
      for (const Completion& completion : rig.client.drain()) {
        MutexLock lock(mutex);
        const auto batch = open.find(completion.id);
        ASSERT_TRUE(batch != open.end()) << "unknown or a second time: " << completion.id.value();
        batch->second(completion);
        open.erase(batch);
      }
    };
    std::thread draining([&] {
      while (!stop) {
        pollfd fd{rig.client.event_fd(), POLLIN, 0};
        if (::poll(&fd, 1, 10) == 1) drain();
      }
    });
    const auto end = std::chrono::steady_clock::now() + kHang;
    while (num_hits < 30U * static_cast<unsigned>(round) &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    rig.client.close();
    stop = true;
    for (std::thread& thread : threads) thread.join();
    draining.join();
    drain();
    EXPECT_TRUE(open.empty()) << open.size() << " batches never completed";
    rig.client.store().check_invariants();
  }
}

}  // namespace
}  // namespace kvferry::lmcache
