// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

namespace kvferry::gpu {
namespace {

class CopyConformance : public DeviceTest {
 protected:
  /// Runs one batch to its end; the state of the event after it.
  [[nodiscard]] EventState run(CopyDirection direction, std::span<const CopyRun> runs) {
    const auto stream = device().create_stream();
    const auto ended = device().create_event();
    stream->copy(direction, runs);
    stream->record(*ended);
    return ended->wait(kHang);
  }

  /// The message of the DeviceError that the batch is rejected with; empty if it is not.
  [[nodiscard]] std::string rejection(CopyDirection direction, std::span<const CopyRun> runs) {
    const auto stream = device().create_stream();
    try {
      stream->copy(direction, runs);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "";
  }

  /// Zeroed memory of whole pages that nobody has registered.
  [[nodiscard]] static HostPages pages(std::size_t count) { return make_host_pages(count * 4096); }
};
KVFERRY_INSTANTIATE_CONFORMANCE(CopyConformance);

TEST_P(CopyConformance, TakesTheLargestBatchInAnyOrder) {
  constexpr std::size_t kPiece = 5;
  constexpr std::size_t kSize = kPiece * kMaxBatchRuns;
  const auto buffer = device().allocate(kSize);
  const auto bytes = pattern(kSize, 3);
  upload(bytes, buffer->address());
  HostMemory host(device(), kSize);
  std::vector<CopyRun> runs;
  for (std::size_t i = 0; i < kMaxBatchRuns; ++i) {
    const std::size_t offset = i * 1031 % kMaxBatchRuns * kPiece;  // 1031 is odd: a permutation
    runs.push_back({host.address() + offset, buffer->address() + offset, kPiece});
  }
  ASSERT_EQ(run(CopyDirection::kDeviceToHost, runs), EventState::kDone);
  EXPECT_TRUE(host.contents() == bytes);
}

TEST_P(CopyConformance, RejectsABatchOverTheLimit) {
  const std::size_t size = kMaxBatchRuns + 1;
  const auto buffer = device().allocate(size);
  HostMemory host(device(), size);
  std::vector<CopyRun> runs;
  for (std::size_t i = 0; i < size; ++i) {
    runs.push_back({host.address() + i, buffer->address() + i, 1});
  }
  EXPECT_NE(rejection(CopyDirection::kDeviceToHost, runs).find("4097"), std::string::npos);
  runs.pop_back();
  EXPECT_EQ(rejection(CopyDirection::kDeviceToHost, runs), "");
}

TEST_P(CopyConformance, BatchOfNoRunsIsNoWork) {
  EXPECT_EQ(run(CopyDirection::kHostToDevice, {}), EventState::kDone);
}

TEST_P(CopyConformance, RejectsAnEmptyRun) {
  const auto buffer = device().allocate(64);
  HostMemory host(device(), 64);
  const CopyRun empty{host.address(), buffer->address(), 0};
  EXPECT_NE(rejection(CopyDirection::kDeviceToHost, {&empty, 1}), "");
}

TEST_P(CopyConformance, RejectsOverlappingDestinationsInAnyOrder) {
  const auto buffer = device().allocate(64);
  HostMemory host(device(), 64);
  std::vector<CopyRun> runs = {{buffer->address(), host.address(), 16},
                               {buffer->address() + 32, host.address() + 16, 16},
                               {buffer->address() + 15, host.address() + 32, 16}};
  EXPECT_NE(rejection(CopyDirection::kHostToDevice, runs).find("overlap"), std::string::npos);
  std::swap(runs[0], runs[2]);
  EXPECT_NE(rejection(CopyDirection::kHostToDevice, runs).find("overlap"), std::string::npos);
  runs = {{buffer->address(), host.address(), 16}, {buffer->address(), host.address() + 16, 16}};
  EXPECT_NE(rejection(CopyDirection::kHostToDevice, runs).find("overlap"), std::string::npos);
}

TEST_P(CopyConformance, TakesTouchingDestinationsAndSharedSources) {
  const auto buffer = device().allocate(32);
  HostMemory host(device(), 16);
  const auto bytes = pattern(16, 4);
  std::copy(bytes.begin(), bytes.end(), host.bytes().begin());
  const std::vector<CopyRun> runs = {{buffer->address(), host.address(), 16},
                                     {buffer->address() + 16, host.address(), 16}};
  ASSERT_EQ(run(CopyDirection::kHostToDevice, runs), EventState::kDone);
  auto twice = bytes;
  twice.insert(twice.end(), bytes.begin(), bytes.end());
  EXPECT_EQ(download(buffer->address(), 32), twice);
}

TEST_P(CopyConformance, RejectsARunAcrossTwoRegistrationsAndTakesItInTwo) {
  constexpr std::size_t kPage = 4096;
  const auto memory = pages(2);
  const auto first = device().register_host(memory.get(), kPage);
  const auto second = device().register_host(memory.get() + kPage, kPage);
  const auto buffer = device().allocate(kPage);
  for (const CopyDirection direction :
       {CopyDirection::kDeviceToHost, CopyDirection::kHostToDevice}) {
    const auto between = [&](std::uintptr_t host, std::uintptr_t on_device, std::size_t bytes) {
      return direction == CopyDirection::kDeviceToHost ? CopyRun{host, on_device, bytes}
                                                       : CopyRun{on_device, host, bytes};
    };
    const std::uintptr_t end = first->device_address() + kPage;
    for (const std::size_t before : {1U, 8U, 15U}) {
      const CopyRun across = between(end - before, buffer->address(), 16);
      const std::string why = rejection(direction, {&across, 1});
      EXPECT_NE(why.find("16 bytes at 0x"), std::string::npos) << why;
      const std::vector<CopyRun> split = {
          between(end - before, buffer->address(), before),
          between(second->device_address(), buffer->address() + before, 16 - before)};
      EXPECT_EQ(run(direction, split), EventState::kDone);
    }
    const CopyRun past = between(second->device_address() + kPage - 8, buffer->address(), 9);
    EXPECT_NE(rejection(direction, {&past, 1}), "");
  }
}

TEST_P(CopyConformance, MovesTheBytesOnBothSidesOfABorderBetweenRegistrations) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kNumPieces = 3;
  constexpr std::size_t kSize = kNumPieces * kPage;
  const auto memory = pages(kNumPieces);
  std::vector<std::unique_ptr<HostRegistration>> pieces;
  for (std::size_t i = 0; i < kNumPieces; ++i) {
    pieces.push_back(device().register_host(memory.get() + i * kPage, kPage));
  }
  const auto bytes = pattern(kSize, 7);
  std::copy(bytes.begin(), bytes.end(), memory.get());
  const auto buffer = device().allocate(kSize);
  std::vector<CopyRun> loads;
  for (std::size_t i = 0; i < kNumPieces; ++i) {
    loads.push_back({buffer->address() + i * kPage, pieces[i]->device_address(), kPage});
  }
  ASSERT_EQ(run(CopyDirection::kHostToDevice, loads), EventState::kDone);
  EXPECT_TRUE(download(buffer->address(), kSize) == bytes);
}

TEST_P(CopyConformance, RejectsHostMemoryNotOrNoLongerRegistered) {
  std::vector<std::uint8_t> memory(64);
  const auto buffer = device().allocate(64);
  auto registration = device().register_host(memory.data(), 64);
  const std::uintptr_t host = registration->device_address();
  const CopyRun load{buffer->address(), host, 64};
  const CopyRun store{host, buffer->address(), 64};
  EXPECT_EQ(rejection(CopyDirection::kHostToDevice, {&load, 1}), "");
  registration.reset();
  EXPECT_NE(rejection(CopyDirection::kHostToDevice, {&load, 1}), "");
  EXPECT_NE(rejection(CopyDirection::kDeviceToHost, {&store, 1}), "");
}

TEST_P(CopyConformance, TakesACopyOfTheRuns) {
  const auto buffer = device().allocate(64);
  const auto bytes = pattern(64, 6);
  upload(bytes, buffer->address());
  HostMemory host(device(), 64);
  const auto stream = device().create_stream();
  Hold hold(under_test(), *stream);
  {
    std::vector<CopyRun> runs = {{host.address(), buffer->address(), 64}};
    stream->copy(CopyDirection::kDeviceToHost, runs);
    runs[0] = {host.address(), buffer->address() + 32, 1};
  }
  hold.release();
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(host.contents(), bytes);
}

}  // namespace
}  // namespace kvferry::gpu
