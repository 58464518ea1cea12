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
