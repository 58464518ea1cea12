// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <atomic>
#include <thread>

namespace kvferry::gpu {
namespace {

constexpr std::size_t kNumThreads = 4;

class ConcurrencyConformance : public DeviceTest {
 protected:
  template <class Body>
  static void run_in_threads(Body body) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kNumThreads; ++i) threads.emplace_back(body, i);
    for (std::thread& thread : threads) thread.join();
  }
};
KVFERRY_INSTANTIATE_CONFORMANCE(ConcurrencyConformance);

TEST_P(ConcurrencyConformance, ThreadsWithTheirOwnStreamsDoNotDisturbEachOther) {
  constexpr std::size_t kSize = 20'000;
  constexpr int kRounds = 20;
  std::atomic<int> num_good{0};
  run_in_threads([&](std::size_t thread) {
    for (int round = 0; round < kRounds; ++round) {
      const auto seed = static_cast<std::uint8_t>(thread * kRounds + static_cast<unsigned>(round));
      const auto buffer = device().allocate(kSize);
      HostMemory from(device(), kSize);
      HostMemory to(device(), kSize);
      const auto bytes = pattern(kSize, seed);
      std::copy(bytes.begin(), bytes.end(), from.bytes().begin());
      const auto loads = device().create_stream();
      const auto stores = device().create_stream();
      const auto loaded = device().create_event();
      const CopyRun load{buffer->address(), from.address(), kSize};
      const CopyRun store{to.address(), buffer->address(), kSize};
      loads->copy(CopyDirection::kHostToDevice, {&load, 1});
      loads->record(*loaded);
      stores->wait(*loaded);
      stores->copy(CopyDirection::kDeviceToHost, {&store, 1});
      if (stores->synchronize(kHang) && to.contents() == bytes) ++num_good;
    }
  });
  EXPECT_EQ(num_good, static_cast<int>(kNumThreads) * kRounds);
}

TEST_P(ConcurrencyConformance, AnEventIsQueriedWhileItIsRecordedAgainAndAgain) {
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  stream->record(*event);
  std::atomic<bool> recording{true};
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> readers;
  for (std::size_t i = 0; i < kNumThreads; ++i) {
    readers.emplace_back([&] {
      while (recording) {
        if (event->wait(kHang) != EventState::kDone) ++num_wrong;
        const EventState state = event->query();
        if (state != EventState::kDone && state != EventState::kPending) ++num_wrong;
        if (!event->failure().empty()) ++num_wrong;
      }
    });
  }
  for (int i = 0; i < 1000; ++i) stream->record(*event);
  recording = false;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(num_wrong, 0);
}

TEST_P(ConcurrencyConformance, ThreadsMakeAndDropEverythingAtOnce) {
  constexpr int kRounds = 60;
  std::atomic<int> num_good{0};
  run_in_threads([&](std::size_t thread) {
    std::unique_ptr<Event> last;
    for (int round = 0; round < kRounds; ++round) {
      const auto buffer = device().allocate(512 + static_cast<std::size_t>(round));
      const HostMemory host(device(), 4096);
      const auto stream = device().create_stream();  // goes first, and waits for its work
      auto event = device().create_event();
      if (last != nullptr) stream->wait(*last);
      stream->fill(buffer->address(), static_cast<std::uint8_t>(thread), buffer->size_bytes());
      stream->record(*event);
      if (device().memory_info().total_bytes > 0) ++num_good;
      if (round % 3 == 0 && event->wait(kHang) != EventState::kDone) --num_good;
      last = std::move(event);
    }
  });
  EXPECT_EQ(num_good, static_cast<int>(kNumThreads) * kRounds);
}

TEST_P(ConcurrencyConformance, StreamsOfSeveralThreadsWaitForOneEvent) {
  constexpr std::size_t kSize = 1000;
  const auto producer = device().create_stream();
  const auto produced = device().create_event();
  const auto buffer = device().allocate(kSize);
  // Before the hold: drivers may wait for the device when memory is registered.
  std::vector<std::unique_ptr<HostMemory>> targets;
  for (std::size_t i = 0; i < kNumThreads; ++i) {
    targets.push_back(std::make_unique<HostMemory>(device(), kSize));
  }
  Hold hold(under_test(), *producer);
  producer->fill(buffer->address(), 5, kSize);
  producer->record(*produced);
  std::atomic<std::size_t> num_submitted{0};
  std::atomic<std::size_t> num_good{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kNumThreads; ++i) {
    threads.emplace_back([&, i] {
      const HostMemory& host = *targets[i];
      const auto stream = device().create_stream();
      const CopyRun store = {host.address(), buffer->address(), kSize};
      stream->wait(*produced);
      stream->copy(CopyDirection::kDeviceToHost, {&store, 1});
      ++num_submitted;
      if (stream->synchronize(kHang) && host.contents() == std::vector<std::uint8_t>(kSize, 5)) {
        ++num_good;
      }
    });
  }
  while (num_submitted < kNumThreads) std::this_thread::yield();
  hold.release();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_good, kNumThreads);
}

TEST_P(ConcurrencyConformance, AStreamIsHandedFromThreadToThread) {
  constexpr std::size_t kSize = kNumThreads;
  const auto buffer = device().allocate(kSize);
  const auto stream = device().create_stream();
  for (std::size_t i = 0; i < kSize; ++i) {
    std::thread([&, i] {
      stream->fill(buffer->address() + i, static_cast<std::uint8_t>(i + 1), kSize - i);
    }).join();
  }
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(download(buffer->address(), kSize), (std::vector<std::uint8_t>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace kvferry::gpu
