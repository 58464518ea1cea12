// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <limits>

namespace kvferry::gpu {
namespace {

class MemoryConformance : public DeviceTest {};
KVFERRY_INSTANTIATE_CONFORMANCE(MemoryConformance);

TEST_P(MemoryConformance, DeviceTellsWhatItIs) {
  EXPECT_EQ(to_string(device().kind()), GetParam().name);
  EXPECT_NE(device().description(), "");
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

TEST_P(MemoryConformance, RejectsWhatIsNoMemory) {
  std::uint8_t byte = 0;
  EXPECT_THROW(std::ignore = device().register_host(nullptr, 64), DeviceError);
  EXPECT_THROW(std::ignore = device().register_host(&byte, 0), DeviceError);
  EXPECT_THROW(
      std::ignore = device().register_host(&byte, std::numeric_limits<std::uint64_t>::max()),
      DeviceError);
}

}  // namespace
}  // namespace kvferry::gpu
