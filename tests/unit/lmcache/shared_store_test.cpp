// SPDX-License-Identifier: Apache-2.0
// What survives in a file of shared memory, and what is never served from one.
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/lmcache/store_file.hpp"

#include "client_rig.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace kvferry::lmcache {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kVersionOffset =
    offsetof(StoreFileHeader, file) + offsetof(cpu_tier::FileHeader, version);

class SharedStore : public testing::Test {
 protected:
  SharedStore() { fs::remove(path_); }
  ~SharedStore() override {
    test_hooks::reset();
    fs::remove(path_);
  }
  [[nodiscard]] std::unique_ptr<ObjectStore> open(std::uint64_t capacity_bytes = 16 * kMiB,
                                                  const fs::path& proc = "/proc") const {
    return std::make_unique<ObjectStore>(
        make_shared_memory(path_, {.capacity_bytes = capacity_bytes, .numa_node = {}, .pages = {}},
                           proc),
        cpu_tier::Eviction::kLru);
  }
  template <typename E>
  void expect_refused(const std::vector<std::string>& words,
                      std::uint64_t capacity_bytes = 16 * kMiB,
                      const fs::path& proc = "/proc") const {
    try {
      static_cast<void>(open(capacity_bytes, proc));
      ADD_FAILURE() << "was served";
    } catch (const E& error) {
      for (const std::string& word : words) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
            << word << " is not in: " << error.what();
      }
    }
  }
  /// Writes into the file as another program would.
  void write(std::uint64_t offset, const void* bytes, std::size_t count) const {
    const int descriptor = ::open(path_.c_str(), O_RDWR);
    ASSERT_GE(descriptor, 0);
    ASSERT_EQ(::pwrite(descriptor, bytes, count, static_cast<off_t>(offset)),
              static_cast<ssize_t>(count));
    ::close(descriptor);
  }

  const fs::path path_ = "/dev/shm/kvferry-store-test-" + std::to_string(::getpid());
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
    store->check_invariants();
    EXPECT_EQ(store->snapshot().num_objects, 9U);
    for (const Item& item : all) {
      EXPECT_EQ(get(*store, item), item.key == "v3" ? Got::kMiss : Got::kRight) << item.key;
    }
  }
  // It goes on as any other.
  const auto store = open();
  for (int i = 0; i < 50; ++i) ASSERT_EQ(put(*store, {{"new" + std::to_string(i), kMiB}}), 1);
  EXPECT_EQ(get(*store, {"new49", kMiB}), Got::kRight);
  EXPECT_EQ(get(*store, all[0]), Got::kMiss);
  store->check_invariants();
}

TEST_F(SharedStore, IsOneProcessAtATime) {
  const auto store = open();
  expect_refused<ResourceError>({path_.string(), "in use by another process"});
}

// A worker that was forked and never became another program holds no lock of its parent.
TEST_F(SharedStore, AForkedChildDoesNotKeepItLocked) {
  int runs[2];
  int ends[2];
  ASSERT_EQ(::pipe(runs), 0);
  ASSERT_EQ(::pipe(ends), 0);
  {
    const auto store = open();
    char byte = 0;
    if (::fork() == 0) {
      ::close(ends[1]);
      static_cast<void>(::write(runs[1], "r", 1));
      static_cast<void>(::read(ends[0], &byte, 1));  // until the test lets go
      ::_exit(0);
    }
    ASSERT_EQ(::read(runs[0], &byte, 1), 1);
  }
  EXPECT_NO_THROW(static_cast<void>(open()));
  for (const int end : {runs[0], runs[1], ends[0], ends[1]}) ::close(end);
  ::wait(nullptr);
}

TEST_F(SharedStore, RefusesAFileThatIsNotItsOwn) {
  static_cast<void>(put(*open(), numbered("v", 4, kMiB)));
  expect_refused<ConfigError>({path_.string(), "capacity 16777216", "33554432"}, 32 * kMiB);

  const fs::path proc = path_.string() + "-proc";
  fs::create_directories(proc / "sys/kernel/random");
  std::ofstream(proc / "sys/kernel/random/boot_id") << "another-boot\n";
  expect_refused<ConfigError>({"boot id", "another-boot"}, 16 * kMiB, proc);
  fs::remove_all(proc);

  const std::uint32_t version = 77;
  write(kVersionOffset, &version, sizeof version);
  expect_refused<ConfigError>({"layout version 77", "expected is 2"});
  write(kVersionOffset, &StoreFileHeader::kVersion, sizeof version);
  EXPECT_EQ(get(*open(), {"v0", kMiB}), Got::kRight);

  write(0, "somebody's", 10);
  expect_refused<ConfigError>({"was not made by kvferry"});
  ASSERT_EQ(::truncate(path_.c_str(), 8192), 0);
  write(0, StoreFileHeader::kMagic.data(), 8);
  write(kVersionOffset, &StoreFileHeader::kVersion, sizeof version);
  expect_refused<ConfigError>({path_.string(), "bytes 8192"});
  ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
  expect_refused<ConfigError>({path_.string()});
  fs::remove(path_);
  EXPECT_FALSE(has(*open(), "v0"));
}

TEST_F(SharedStore, ServesNoRecordThatWasChanged) {
  const std::vector<Item> all = numbered("v", 4, kMiB);
  std::uint64_t begin = 0;
  StoreGeometry geometry;
  std::vector<std::uint64_t> chunks;
  {
    const auto store = open();
    ASSERT_EQ(put(*store, all), 4);
    geometry = store->memory().geometry();
    begin = chunks_offset(geometry);
    ReadableValues values = store->lease(keys_of(all), sizes_of(all));
    for (const std::byte* const place : values.places()) {
      chunks.push_back(static_cast<std::uint64_t>(place - store->memory().chunk(0)) /
                       geometry.chunk_bytes);
    }
    store->release(std::move(values));
  }
  // The key of one record, the size of another, and the size of a chunk's slots.
  ASSERT_EQ(slots_per_chunk(geometry, kMiB), 1U);
  const auto record = [&](std::size_t value) {
    return begin + (chunks[value] + 1) * geometry.chunk_bytes - kRecordBytes;
  };
  write(record(0) + offsetof(SlotRecord, key), "w", 1);
  const std::uint64_t size = kMiB - 1;
  write(record(1) + offsetof(SlotRecord, value_bytes), &size, sizeof size);
  const std::uint64_t nonsense = 12345;
  write(StoreFileHeader::kBytes + chunks[2] * sizeof nonsense, &nonsense, sizeof nonsense);
  const auto store = open();
  store->check_invariants();
  EXPECT_EQ(store->snapshot().num_objects, 1U);
  EXPECT_EQ(get(*store, all[3]), Got::kRight);
  EXPECT_EQ(get(*store, {"w0", kMiB}), Got::kMiss);
  EXPECT_EQ(get(*store, {"v1", kMiB - 1}), Got::kMiss);
}

TEST_F(SharedStore, SurvivesAnyNonsenseInItsChunks) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20; ++round) {
    std::uint64_t size = 0;
    {
      const auto store = open();
      static_cast<void>(put(*store, numbered("a" + std::to_string(round), 40, 30000)));
      size = chunks_offset(store->memory().geometry());
    }
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t word = random() >> (random() % 60);
      const std::uint64_t offset =
          StoreFileHeader::kBytes + random() % (size + 4 * kMiB - StoreFileHeader::kBytes - 8);
      write(offset, &word, sizeof word);
    }
    const auto store = open();
    store->check_invariants();
  }
}

/// A child starts threads, which TSan does not support where its parent had some. What a death
/// leaves is no race; the other builds run these tests.
constexpr bool kCanForkWithThreads =
#if defined(__SANITIZE_THREAD__)
    false;
#else
    true;
#endif

/// Runs `life` in a child, which is killed by `kill_it` or by itself.
void in_child(const std::function<void()>& life, const std::function<void(pid_t)>& kill_it = {}) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    life();
    ::_exit(0);
  }
  if (kill_it) kill_it(child);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

TEST_F(SharedStore, ServesNothingHalfWrittenAfterADeathAtAnyPausePoint) {
  if (!kCanForkWithThreads) GTEST_SKIP() << "TSan: no threads behind a fork";
  const std::vector<Item> old = numbered("old", 4, 100 * kKiB);
  for (const char* const point :
       {"lmcache.before_publish", "lmcache.chunk_was_cleared", "lmcache.before_part",
        "lmcache.before_commit", "lmcache.committed_one"}) {
    SCOPED_TRACE(point);
    const bool at_start = std::string(point) == "lmcache.before_publish";
    fs::remove(path_);
    if (!at_start) {
      ASSERT_EQ(put(*open(), old), 4);
    }
    in_child([&] {
      test_hooks::on_pause(point, [] { ::raise(SIGKILL); });
      ObjectClient client(open(), 2);
      std::vector<std::vector<std::byte>> values;
      const auto items = numbered("new", 3, 600 * kKiB);
      for (const Item& item : items) values.push_back(value_of(item.key, item.bytes));
      std::vector<std::span<const std::byte>> views(values.begin(), values.end());
      client.submit_set(keys_of(items), views);
      for (;;) ::pause();
    });
    const auto store = open();
    store->check_invariants();
    for (const Item& item : old) {
      EXPECT_EQ(get(*store, item), at_start ? Got::kMiss : Got::kRight) << item.key;
    }
    std::size_t num_new = 0;
    for (const Item& item : numbered("new", 3, 600 * kKiB)) {
      const Got got = get(*store, item);
      EXPECT_NE(got, Got::kWrong) << item.key;
      num_new += got == Got::kRight ? 1 : 0;
    }
    EXPECT_EQ(num_new, std::string(point) == "lmcache.committed_one" ? 1U : 0U);
  }
}

TEST_F(SharedStore, ServesOnlyWholeValuesAfterDeathsAtRandom) {
  if (!kCanForkWithThreads) GTEST_SKIP() << "TSan: no threads behind a fork";
  std::mt19937_64 random(11);
  std::size_t num_found = 0;
  for (int round = 0; round < 25; ++round) {
    in_child(
        [&, seed = random()] {
          std::mt19937_64 chance(seed);
          ClientRig rig(open(24 * kMiB), 2);
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
        },
        [&](pid_t child) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 60));
          ::kill(child, SIGKILL);
        });
    const auto store = open(24 * kMiB);
    store->check_invariants();
    for (int key = 0; key < 50; ++key) {
      for (const std::uint64_t unit : {std::uint64_t{9000}, 500 * kKiB}) {
        for (std::uint64_t times = 1; times <= 3; ++times) {
          const Got got = get(*store, {"k" + std::to_string(key), times * unit});
          ASSERT_NE(got, Got::kWrong) << key << " x " << times * unit << " in round " << round;
          num_found += got == Got::kRight ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(num_found, 100U);
}

}  // namespace
}  // namespace kvferry::lmcache
