// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/batch_copy.hpp"

#include "kvferry/gpu/host_link.hpp"

#include "byte_sizes.hpp"
#include "hang.hpp"
#include "host/copy_team.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace kvferry::gpu {
namespace {

constexpr std::uint8_t kUntouched = 0xee;
// Where batches begin to pass the caches by and to be shared, and where a part ends.
constexpr std::uint64_t kBorders[] = {32 * kKiB, 256 * kKiB, 1024 * kKiB, 1056 * kKiB};

/// Runs of all sizes from `least` to `most` that make up `bytes`, at places in random order with
/// gaps between them, and the memory on both sides.
class Scattered {
 public:
  Scattered(std::uint64_t bytes, std::uint64_t least, std::uint64_t most) : random_(bytes + most) {
    std::uint64_t left = bytes;
    std::vector<std::uint64_t> sizes;
    while (left > 0) {
      sizes.push_back(std::min(left, least + random_() % (most - least + 1)));
      left -= sizes.back();
    }
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), random_);
    const std::uint64_t stride = most + 3;
    source.resize(stride * sizes.size());
    destination.assign(bytes, kUntouched);
    for (std::uint8_t& byte : source) byte = static_cast<std::uint8_t>(random_());
    std::uint64_t packed = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::uint64_t place = stride * order[i];
      runs.push_back({address(destination) + packed, address(source) + place, sizes[i]});
      expected.insert(expected.end(), source.begin() + static_cast<std::ptrdiff_t>(place),
                      source.begin() + static_cast<std::ptrdiff_t>(place + sizes[i]));
      packed += sizes[i];
    }
  }
  /// The first `bytes` arrived and nothing else was written.
  [[nodiscard]] bool has_first(std::uint64_t bytes) const {
    const auto end = static_cast<std::ptrdiff_t>(bytes);
    return std::equal(expected.begin(), expected.begin() + end, destination.begin()) &&
           std::all_of(destination.begin() + end, destination.end(),
                       [](std::uint8_t byte) { return byte == kUntouched; });
  }
  static std::uintptr_t address(const std::vector<std::uint8_t>& memory) {
    return reinterpret_cast<std::uintptr_t>(memory.data());
  }

  std::vector<std::uint8_t> source;
  std::vector<std::uint8_t> destination;
  std::vector<std::uint8_t> expected;
  std::vector<CopyRun> runs;

 private:
  std::mt19937_64 random_;
};

TEST(BatchCopy, CopiesEveryByteAroundAllBordersWithHelpersAndWithout) {
  for (const std::uint32_t num_helpers : {0U, 1U, 3U}) {
    CopyTeam team(num_helpers);
    for (const std::uint64_t border : kBorders) {
      for (const std::uint64_t bytes : {border - 1, border, border + 1}) {
        for (const std::uint64_t most : {std::uint64_t{5000}, 300 * kKiB, bytes}) {
          Scattered memory(bytes, most == bytes ? bytes : 1, most);
          copy_with(team, BatchCopy(memory.runs, bytes), bytes);
          ASSERT_TRUE(memory.has_first(bytes)) << bytes << " in runs of up to " << most;
        }
      }
    }
  }
}

TEST(BatchCopy, CopiesTheFirstBytesAndNoMore) {
  CopyTeam team(2);
  constexpr std::uint64_t kBytes = 3000 * kKiB + 77;
  for (const std::uint64_t end : {std::uint64_t{0}, std::uint64_t{1}, kBytes / 2, kBytes - 1}) {
    Scattered memory(kBytes, 1, 9000);
    copy_with(team, BatchCopy(memory.runs, kBytes), end);
    ASSERT_TRUE(memory.has_first(end)) << end;
  }
}

TEST(BatchCopy, CopiesFromAnyByteToAnyOther) {
  Scattered memory(300 * kKiB, 1, 700);
  const BatchCopy batch(memory.runs, 300 * kKiB);
  std::uint64_t begin = 0;
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{699}, std::uint64_t{5000}, 100 * kKiB}) {
    batch.copy(begin, begin + bytes);
    begin += bytes;
    ASSERT_TRUE(memory.has_first(begin)) << begin;
  }
  batch.copy(begin, 300 * kKiB);
  EXPECT_TRUE(memory.has_first(300 * kKiB));
}

/// A device, a batch of `bytes` that it stores in runs of up to 9000, and the registration of the
/// destination.
struct Storing {
  explicit Storing(Device& device, std::uint64_t bytes)
      : memory(bytes, 1, 9000),
        registration(device.register_host(memory.destination.data(), bytes)) {}
  void submit(Stream& stream) const {
    std::span<const CopyRun> rest(memory.runs);
    stream.copy(CopyDirection::kDeviceToHost, rest.first(std::min(rest.size(), kMaxBatchRuns)),
                CopyCall::kBatch);
  }
  Scattered memory;
  std::unique_ptr<HostRegistration> registration;
};

TEST(SharedCopies, OfSeveralStreamsAtOnceAllArrive) {
  const auto device = make_host_device();
  std::vector<std::unique_ptr<Storing>> batches;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> ends;
  for (std::uint64_t i = 0; i < 4; ++i) {
    batches.push_back(std::make_unique<Storing>(*device, (1000 + 500 * i) * kKiB + i));
    streams.push_back(device->create_stream());
    ends.push_back(device->create_event());
  }
  for (int round = 0; round < 10; ++round) {
    for (const auto& batch : batches) std::fill_n(batch->memory.destination.data(), 8, kUntouched);
    for (std::size_t i = 0; i < streams.size(); ++i) {
      batches[i]->submit(*streams[i]);
      streams[i]->record(*ends[i]);
    }
    for (std::size_t i = 0; i < streams.size(); ++i) {
      ASSERT_EQ(ends[i]->wait(kHang), EventState::kDone);
      ASSERT_TRUE(batches[i]->memory.has_first(batches[i]->memory.expected.size()));
    }
  }
}

TEST(SharedCopies, ThatFailWriteTheFirstHalfAndNoMore) {
  const auto device = make_host_device({}, [](const OperationInfo&) {
    OperationVerdict verdict;
    verdict.fail = true;
    return verdict;
  });
  constexpr std::uint64_t kBytes = 3000 * kKiB + 11;
  const Storing batch(*device, kBytes);
  const auto stream = device->create_stream();
  const auto end = device->create_event();
  batch.submit(*stream);
  stream->record(*end);
  ASSERT_EQ(end->wait(kHang), EventState::kFailed);
  EXPECT_TRUE(batch.memory.has_first(kBytes / 2));
}

TEST(SharedCopies, RunNoMoreOnceTheDeviceIsQuiet) {
  const auto device = make_host_device({}, [](const OperationInfo&) {
    OperationVerdict verdict;
    verdict.loses = LostMemory::kQuiet;
    return verdict;
  });
  const Storing batch(*device, 3000 * kKiB);
  const auto stream = device->create_stream();
  batch.submit(*stream);
  EXPECT_TRUE(stream->synchronize(kHang));
  EXPECT_TRUE(batch.memory.has_first(0));
}

}  // namespace
}  // namespace kvferry::gpu
