// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <atomic>
#include <cstring>
#include <limits>
#include <regex>
#include <thread>

namespace kvferry::gpu {
namespace {

class MemoryConformance : public DeviceTest {};
KVFERRY_INSTANTIATE_CONFORMANCE(MemoryConformance);

TEST_P(MemoryConformance, DeviceTellsWhatItIs) {
  EXPECT_EQ(device().kind(), GetParam().kind);
  EXPECT_NE(device().description(), "");
  EXPECT_EQ(device().pci_address().has_value(), GetParam().kind != BackendKind::kHost);
  if (const auto address = device().pci_address()) {
    EXPECT_TRUE(std::regex_match(*address, std::regex("[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\\.0")))
        << *address;
  }
  const MemoryInfo memory = device().memory_info();
  EXPECT_GT(memory.free_bytes, 0U);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
}

TEST_P(MemoryConformance, BuffersAreDisjointAndKeepTheirBytes) {
  const auto first = device().allocate(10'000);
  const auto second = device().allocate(10'000);
  EXPECT_EQ(first->size_bytes(), 10'000U);
  const auto first_bytes = pattern(10'000, 1);
  const auto second_bytes = pattern(10'000, 2);
  upload(first_bytes, first->address());
  upload(second_bytes, second->address());
  EXPECT_EQ(download(first->address(), 10'000), first_bytes);
  EXPECT_EQ(download(second->address(), 10'000), second_bytes);
}

TEST_P(MemoryConformance, FillSetsExactlyTheBytesAskedFor) {
  const auto buffer = device().allocate(100);
  auto expected = pattern(100, 3);
  upload(expected, buffer->address());
  const auto stream = device().create_stream();
  stream->fill(buffer->address() + 7, 0xab, 13);
  stream->fill(buffer->address() + 50, 0xcd, 0);
  ASSERT_TRUE(stream->synchronize(kHang));
  std::fill_n(expected.begin() + 7, 13, std::uint8_t{0xab});
  EXPECT_EQ(download(buffer->address(), 100), expected);
}

TEST_P(MemoryConformance, AllocationBeyondTheDeviceNamesTheBytesAskedFor) {
  constexpr std::uint64_t kTooMany = std::uint64_t{1} << 60U;
  try {
    const auto buffer = device().allocate(kTooMany);
    FAIL() << "allocated " << buffer->size_bytes() << " bytes";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(kTooMany)), std::string::npos)
        << error.what();
  }
}

TEST_P(MemoryConformance, RejectsARegistrationThatOverlapsALiveOne) {
  std::vector<std::uint8_t> memory(300);
  auto middle = device().register_host(memory.data() + 100, 100);
  EXPECT_THROW(std::ignore = device().register_host(memory.data() + 199, 1), DeviceError);
  EXPECT_THROW(std::ignore = device().register_host(memory.data() + 50, 51), DeviceError);
  EXPECT_THROW(std::ignore = device().register_host(memory.data(), 300), DeviceError);
  middle.reset();
  EXPECT_NO_THROW(std::ignore = device().register_host(memory.data(), 300));
}

TEST_P(MemoryConformance, TakesARangeAgainInOtherPieces) {
  constexpr std::size_t kPage = 4096;
  const auto memory = make_host_pages(4 * kPage);
  for (const std::size_t num_pages : {1U, 2U, 4U, 1U}) {
    std::vector<std::unique_ptr<HostRegistration>> pieces;
    for (std::size_t at = 0; at < 4; at += num_pages) {
      pieces.push_back(device().register_host(memory.get() + at * kPage, num_pages * kPage));
    }
    EXPECT_THROW(std::ignore = device().register_host(memory.get(), 4 * kPage), DeviceError);
  }
}

// Host memory grows while the engine serves: pieces come and go on one thread while streams of
// others copy through those that stay.
TEST_P(MemoryConformance, PiecesComeAndGoWhileStreamsCopy) {
  constexpr std::size_t kPiece = 64 * 1024;
  constexpr std::size_t kNumPieces = 4;
  constexpr int kRounds = 60;
  const auto growing = make_host_pages(kNumPieces * kPiece);
  HostMemory source(device(), kPiece);
  HostMemory target(device(), kPiece);
  const auto bytes = pattern(kPiece, 8);
  std::memcpy(source.bytes().data(), bytes.data(), kPiece);
  std::atomic<bool> serving{true};
  std::atomic<int> num_wrong{0};
  std::thread server([&] {
    const auto stream = device().create_stream();
    const auto buffer = device().allocate(kPiece);
    while (serving) {
      const CopyRun load = {buffer->address(), source.address(), kPiece};
      const CopyRun store = {target.address(), buffer->address(), kPiece};
      stream->copy(CopyDirection::kHostToDevice, {&load, 1});
      stream->copy(CopyDirection::kDeviceToHost, {&store, 1});
      if (!stream->synchronize(kHang) || target.contents() != bytes) ++num_wrong;
      std::memset(target.bytes().data(), 0, kPiece);
    }
  });
  const auto buffer = device().allocate(kPiece);
  const auto stream = device().create_stream();
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::unique_ptr<HostRegistration>> pieces;
    for (std::size_t i = 0; i < kNumPieces; ++i) {
      std::uint8_t* const piece = growing.get() + i * kPiece;
      pieces.push_back(device().register_host(piece, kPiece));
      // Each piece serves as soon as it is there.
      stream->fill(buffer->address(), static_cast<std::uint8_t>(round + 1), kPiece);
      const CopyRun store = {pieces.back()->device_address(), buffer->address(), kPiece};
      stream->copy(CopyDirection::kDeviceToHost, {&store, 1});
    }
    EXPECT_TRUE(stream->synchronize(kHang));
    EXPECT_TRUE(std::all_of(growing.get(), growing.get() + kNumPieces * kPiece,
                            [round](std::uint8_t byte) { return byte == round + 1; }));
  }
  serving = false;
  server.join();
  EXPECT_EQ(num_wrong, 0);
}

// A driver may wait for the whole device when memory is freed, hence the thread.
TEST_P(MemoryConformance, ABufferGoesWhileAStreamWorksOnOthers) {
  const auto stays = device().allocate(1000);
  auto goes = device().allocate(1000);
  HostMemory host(device(), 1000);
  const auto busy = device().create_stream();
  Hold hold(under_test(), *busy);
  busy->fill(stays->address(), 9, 1000);
  const CopyRun store = {host.address(), stays->address(), 1000};
  busy->copy(CopyDirection::kDeviceToHost, {&store, 1});
  std::thread owner([&goes] { goes.reset(); });
  hold.release();
  owner.join();
  ASSERT_TRUE(busy->synchronize(kHang));
  EXPECT_EQ(host.contents(), std::vector<std::uint8_t>(1000, 9));
}

TEST_P(MemoryConformance, RejectsWhatIsNoMemory) {
  std::uint8_t byte = 0;
  EXPECT_THROW(std::ignore = device().register_host(nullptr, 64), DeviceError);
  EXPECT_THROW(std::ignore = device().register_host(&byte, 0), DeviceError);
  EXPECT_THROW(
      std::ignore = device().register_host(&byte, std::numeric_limits<std::uint64_t>::max()),
      DeviceError);
}

using MemoryConformanceDeathTest = MemoryConformance;
KVFERRY_INSTANTIATE_CONFORMANCE(MemoryConformanceDeathTest);

TEST_P(MemoryConformanceDeathTest, ADeviceThatGoesBeforeWhatItMadeStopsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto outlive = [](auto make) {
    auto other = GetParam().open();
    const auto made = make(other->device());
    other.reset();
  };
  const auto memory = make_host_pages(4096);
  EXPECT_DEATH(outlive([](Device& d) { return d.create_stream(); }), "stream");
  EXPECT_DEATH(outlive([](Device& d) { return d.create_event(); }), "event");
  EXPECT_DEATH(outlive([&](Device& d) { return d.register_host(memory.get(), 4096); }),
               "registration");
}

}  // namespace
}  // namespace kvferry::gpu
