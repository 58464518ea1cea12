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
};
KVFERRY_INSTANTIATE_CONFORMANCE(CopyConformance);

TEST_P(CopyConformance, BatchMovesEverySizeAndAlignment) {
  constexpr std::size_t kSizes[] = {1,
                                    2,
                                    3,
                                    4,
                                    7,
                                    8,
                                    15,
                                    16,
                                    17,
                                    31,
                                    63,
                                    64,
                                    65,
                                    127,
                                    128,
                                    255,
                                    256,
                                    257,
                                    4095,
                                    4096,
                                    4097,
                                    65535,
                                    65536,
                                    65537,
                                    (1U << 20U) - 1,
                                    (1U << 20U) + 1,
                                    (3U << 20U) + 5};
  constexpr std::size_t kOffsets[] = {0, 1, 3, 8, 13};

  // Each run lies at its own offset from a multiple of 64, differently on both sides, in untouched
  // gaps.
  std::vector<CopyRun> runs;
  std::size_t end = 0;
  for (const std::size_t size : kSizes) {
    for (const std::size_t offset : kOffsets) {
      const std::size_t begin = (end + 127) / 64 * 64;
      runs.push_back({begin + offset, begin + kOffsets[runs.size() * 3 % 5], size});
      end = begin + 16 + size;
    }
  }
  const auto source = pattern(end, 1);
  std::vector<std::uint8_t> on_device(end, 0xee);
  std::vector<std::uint8_t> expected(end, 0);
  for (const CopyRun& run : runs) {
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(run.source), run.bytes,
                on_device.begin() + static_cast<std::ptrdiff_t>(run.destination));
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(run.source), run.bytes,
                expected.begin() + static_cast<std::ptrdiff_t>(run.source));
  }

  const auto buffer = device().allocate(end);
  HostMemory from(device(), end);
  HostMemory to(device(), end);
  std::copy(source.begin(), source.end(), from.bytes().begin());
  std::vector<CopyRun> loads;
  std::vector<CopyRun> stores;
  for (const CopyRun& run : runs) {
    loads.push_back({buffer->address() + run.destination, from.address() + run.source, run.bytes});
    stores.push_back({to.address() + run.source, buffer->address() + run.destination, run.bytes});
  }
  const auto stream = device().create_stream();
  stream->fill(buffer->address(), 0xee, end);
  ASSERT_TRUE(stream->synchronize(kHang));
  ASSERT_EQ(run(CopyDirection::kHostToDevice, loads), EventState::kDone);
  EXPECT_TRUE(download(buffer->address(), end) == on_device);
  ASSERT_EQ(run(CopyDirection::kDeviceToHost, stores), EventState::kDone);
  EXPECT_TRUE(to.contents() == expected);
}

TEST_P(CopyConformance, Moves64MiBInOneRun) {
  constexpr std::size_t kSize = 64U << 20U;
  const auto buffer = device().allocate(kSize);
  const auto bytes = pattern(kSize, 2);
  upload(bytes, buffer->address());
  EXPECT_TRUE(download(buffer->address(), kSize) == bytes);
}

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

TEST_P(CopyConformance, RejectsARunAcrossTwoRegistrations) {
  constexpr std::size_t kPage = 4096;
  std::vector<std::uint8_t> memory(4 * kPage);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % kPage;
  std::uint8_t* const pages = memory.data() + (kPage - misaligned);
  const auto first = device().register_host(pages, kPage);
  const auto second = device().register_host(pages + kPage, kPage);
  const auto buffer = device().allocate(kPage);
  const CopyRun across{first->device_address() + kPage - 8, buffer->address(), 16};
  const std::string why = rejection(CopyDirection::kDeviceToHost, {&across, 1});
  EXPECT_NE(why.find("16 bytes at 0x"), std::string::npos) << why;
  const std::vector<CopyRun> split = {{first->device_address() + kPage - 8, buffer->address(), 8},
                                      {second->device_address(), buffer->address() + 8, 8}};
  EXPECT_EQ(run(CopyDirection::kDeviceToHost, split), EventState::kDone);
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
  under_test().hold(*stream);
  {
    std::vector<CopyRun> runs = {{host.address(), buffer->address(), 64}};
    stream->copy(CopyDirection::kDeviceToHost, runs);
    runs[0] = {host.address(), buffer->address() + 32, 1};
  }
  under_test().release();
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(host.contents(), bytes);
}

}  // namespace
}  // namespace kvferry::gpu
