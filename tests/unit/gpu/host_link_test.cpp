// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/host_link.hpp"

#include "hang.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::gpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// More than what the back end copies through the caches, and not a whole number of cache lines.
constexpr std::size_t kStreamedBytes = (std::size_t{600} << 10U) + 37;

/// A device, registered host memory and device memory of one size, and copies between their ends.
class Rig {
 public:
  explicit Rig(std::size_t size, const HostLinkOptions& link = {},
               OperationInterceptor interceptor = {})
      : device_(make_host_device(link, std::move(interceptor))),
        host_(size, 1),
        registration_(device_->register_host(host_.data(), size)),
        buffer_(device_->allocate(size)) {}

  [[nodiscard]] Device& device() { return *device_; }
  [[nodiscard]] std::vector<std::uint8_t>& host() { return host_; }
  [[nodiscard]] std::uintptr_t buffer() const { return buffer_->address(); }

  void load(Stream& stream, std::size_t offset, std::size_t bytes) const {
    const CopyRun run{buffer_->address() + offset, registration_->device_address() + offset, bytes};
    stream.copy(CopyDirection::kHostToDevice, {&run, 1});
  }
  void store(Stream& stream, std::size_t offset, std::size_t bytes) const {
    const CopyRun run{registration_->device_address() + offset, buffer_->address() + offset, bytes};
    stream.copy(CopyDirection::kDeviceToHost, {&run, 1});
  }

 private:
  std::unique_ptr<Device> device_;
  std::vector<std::uint8_t> host_;
  std::unique_ptr<HostRegistration> registration_;
  std::unique_ptr<DeviceBuffer> buffer_;
};

/// Time between two events around `work` on one stream.
template <class Work>
nanoseconds time_of(Device& device, Stream& stream, Work work) {
  const auto begin = device.create_event();
  const auto end = device.create_event();
  stream.record(*begin);
  work();
  stream.record(*end);
  EXPECT_EQ(end->wait(kHang), EventState::kDone);
  return end->elapsed_since(*begin);
}

TEST(HostLink, BandwidthBoundsEachDirectionFromBelow) {
  constexpr std::size_t kSize = 100'000;
  Rig rig(kSize, {.h2d_bytes_per_second = 1e7, .d2h_bytes_per_second = 5e6});
  const auto stream = rig.device().create_stream();
  EXPECT_GE(time_of(rig.device(), *stream, [&] { rig.load(*stream, 0, kSize); }), milliseconds(10));
  EXPECT_GE(time_of(rig.device(), *stream, [&] { rig.store(*stream, 0, kSize); }),
            milliseconds(20));
}

TEST(HostLink, CopiesOfTwoStreamsShareTheBandwidthOfADirection) {
  constexpr std::size_t kSize = 100'000;
  Rig rig(2 * kSize, {.h2d_bytes_per_second = 1e7});
  const auto first = rig.device().create_stream();
  const auto second = rig.device().create_stream();
  const auto begin = rig.device().create_event();
  const auto first_end = rig.device().create_event();
  const auto second_end = rig.device().create_event();
  first->record(*begin);
  second->wait(*begin);
  rig.load(*first, 0, kSize);
  first->record(*first_end);
  rig.load(*second, kSize, kSize);
  second->record(*second_end);
  ASSERT_EQ(first_end->wait(kHang), EventState::kDone);
  ASSERT_EQ(second_end->wait(kHang), EventState::kDone);
  EXPECT_GE(std::max(first_end->elapsed_since(*begin), second_end->elapsed_since(*begin)),
            milliseconds(20));
}

TEST(HostLink, LatencyIsPaidByEveryCopyCall) {
  Rig rig(64, {.latency = milliseconds(3)});
  const auto stream = rig.device().create_stream();
  EXPECT_GE(time_of(rig.device(), *stream,
                    [&] {
                      for (int i = 0; i < 4; ++i) rig.load(*stream, 0, 64);
                    }),
            milliseconds(12));
}

TEST(HostLink, StallIsPaidByTheFirstCopyOfEachDirection) {
  constexpr auto kStall = milliseconds(200);
  Rig rig(64, {.stall = kStall});
  const auto stream = rig.device().create_stream();
  const auto load = [&] { rig.load(*stream, 0, 64); };
  const auto store = [&] { rig.store(*stream, 0, 64); };
  EXPECT_GE(time_of(rig.device(), *stream, load), kStall);
  EXPECT_GE(time_of(rig.device(), *stream, store), kStall);
}

TEST(HostLink, AppliesToAViewOfTheEnginesStream) {
  Rig rig(64, {.latency = milliseconds(3)});
  const auto engine = rig.device().view_stream(0);
  EXPECT_GE(time_of(rig.device(), *engine, [&] { rig.load(*engine, 0, 64); }), milliseconds(3));
}

TEST(HostLink, CopiesMoveTheirBytesUnderSimulation) {
  Rig rig(1001, {.h2d_bytes_per_second = 1e9, .latency = nanoseconds(1000)});
  for (std::size_t i = 0; i < 1001; ++i) rig.host()[i] = static_cast<std::uint8_t>(i % 251);
  const auto expected = rig.host();
  const auto stream = rig.device().create_stream();
  rig.load(*stream, 0, 1001);
  ASSERT_TRUE(stream->synchronize(kHang));
  std::fill(rig.host().begin(), rig.host().end(), std::uint8_t{0});
  rig.store(*stream, 0, 1001);
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(rig.host(), expected);
}

TEST(HostLink, FailNthFailsExactlyThatCopyOverAllStreams) {
  for (const LinkOrder order : {LinkOrder::kFifo, LinkOrder::kShuffled}) {
    Rig rig(64, {.order = order, .fail_nth = 4});
    const auto first = rig.device().create_stream();
    const auto second = rig.device().create_stream();
    std::vector<std::unique_ptr<Event>> events;
    for (int i = 0; i < 8; ++i) {
      Stream& stream = i % 2 == 0 ? *first : *second;
      if (i % 4 < 2) {
        rig.load(stream, 0, 64);
      } else {
        rig.store(stream, 0, 64);
      }
      events.push_back(rig.device().create_event());
      stream.record(*events.back());
      ASSERT_NE(events.back()->wait(kHang), EventState::kPending);
    }
    for (std::size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(events[i]->query(), i == 3 ? EventState::kFailed : EventState::kDone) << i;
    }
    EXPECT_NE(events[3]->failure().find("copy 4"), std::string::npos) << events[3]->failure();
  }
}

TEST(HostLink, RejectedCopyDoesNotCountForFailNth) {
  Rig rig(64, {.fail_nth = 1});
  const auto stream = rig.device().create_stream();
  EXPECT_THROW(rig.load(*stream, 0, 65), DeviceError);
  stream->copy(CopyDirection::kHostToDevice, {});
  rig.load(*stream, 0, 64);
  const auto event = rig.device().create_event();
  stream->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kFailed);
}

TEST(HostLink, OneCallPerRunIsSoManyCopies) {
  Rig rig(64, {.fail_nth = 2});
  const auto stream = rig.device().create_stream();
  stream->fill(rig.buffer(), 9, 64);
  std::vector<CopyRun> runs;
  const auto host = reinterpret_cast<std::uintptr_t>(rig.host().data());
  for (std::size_t i = 0; i < 64; i += 16) runs.push_back({rig.buffer() + i, host + i, 16});
  stream->copy(CopyDirection::kHostToDevice, runs, CopyCall::kPerRun);
  stream->copy(CopyDirection::kDeviceToHost, std::vector{CopyRun{host, rig.buffer(), 64}});
  ASSERT_TRUE(stream->synchronize(kHang));
  std::vector<std::uint8_t> expected(64, 1);
  std::fill(expected.begin() + 24, expected.begin() + 32, std::uint8_t{9});
  EXPECT_EQ(rig.host(), expected) << "the second copy failed half-way, and no other";
}

// The second size is copied past the caches.
TEST(HostLink, FailedCopyIsPartlyWritten) {
  for (const std::size_t size : {std::size_t{64}, kStreamedBytes}) {
    Rig rig(size, {.fail_nth = 1});
    const auto stream = rig.device().create_stream();
    stream->fill(rig.buffer(), 9, size);
    rig.load(*stream, 0, size);
    rig.store(*stream, 0, size);
    ASSERT_TRUE(stream->synchronize(kHang));
    std::vector<std::uint8_t> expected(size, 1);
    std::fill(expected.begin() + static_cast<std::ptrdiff_t>(size / 2), expected.end(),
              std::uint8_t{9});
    EXPECT_EQ(rig.host(), expected) << size;
  }
}

TEST(HostLink, LargeBatchesOfOddRunsMoveTheirBytes) {
  for (const HostLinkOptions& link :
       {HostLinkOptions{}, HostLinkOptions{.latency = nanoseconds(1)}}) {
    Rig rig(kStreamedBytes, link);
    for (std::size_t i = 0; i < kStreamedBytes; ++i) {
      rig.host()[i] = static_cast<std::uint8_t>(i % 251);
    }
    const auto expected = rig.host();
    const auto stream = rig.device().create_stream();
    const auto host = reinterpret_cast<std::uintptr_t>(rig.host().data());
    std::vector<CopyRun> runs;
    for (std::size_t i = 0; i < kStreamedBytes; i += 1001) {
      runs.push_back({rig.buffer() + i, host + i, std::min<std::size_t>(1001, kStreamedBytes - i)});
    }
    stream->copy(CopyDirection::kHostToDevice, runs);
    ASSERT_TRUE(stream->synchronize(kHang));
    std::fill(rig.host().begin(), rig.host().end(), std::uint8_t{0});
    rig.store(*stream, 0, kStreamedBytes);
    ASSERT_TRUE(stream->synchronize(kHang));
    EXPECT_EQ(rig.host(), expected);
  }
}

TEST(HostLink, ShuffledKeepsTheOrderWithinAStream) {
  constexpr std::size_t kNumStreams = 3;
  constexpr std::size_t kNumRounds = 30;
  Rig rig(kNumStreams, {.order = LinkOrder::kShuffled, .seed = 7});
  std::vector<std::unique_ptr<Stream>> streams;
  for (std::size_t s = 0; s < kNumStreams; ++s) streams.push_back(rig.device().create_stream());
  std::vector<std::vector<std::unique_ptr<Event>>> ends(kNumStreams);
  const auto begin = rig.device().create_event();
  streams[0]->record(*begin);
  for (std::size_t round = 0; round < kNumRounds; ++round) {
    for (std::size_t s = 0; s < kNumStreams; ++s) {
      // Each round changes the byte on the device, so that a store out of order brings a wrong one.
      streams[s]->fill(rig.buffer() + s, static_cast<std::uint8_t>(round), 1);
      rig.store(*streams[s], s, 1);
      ends[s].push_back(rig.device().create_event());
      streams[s]->record(*ends[s].back());
    }
  }
  for (std::size_t s = 0; s < kNumStreams; ++s) {
    ASSERT_TRUE(streams[s]->synchronize(kHang));
    EXPECT_EQ(rig.host()[s], kNumRounds - 1);
    for (std::size_t round = 1; round < kNumRounds; ++round) {
      EXPECT_GE(ends[s][round]->elapsed_since(*ends[s][round - 1]), nanoseconds::zero());
    }
  }
}

TEST(HostLink, InterceptorSeesKindAndBytesOfEveryOperation) {
  std::vector<OperationInfo> seen;
  Rig rig(64, {}, [&](const OperationInfo& info) {
    seen.push_back(info);
    return OperationVerdict{};
  });
  const auto stream = rig.device().create_stream();
  const auto geometry = make_block_geometry({{rig.buffer(), 8, 5}}, 4);
  const std::vector<BlockId> blocks = {BlockId(0), BlockId(2)};
  rig.load(*stream, 0, 64);
  rig.store(*stream, 0, 63);
  stream->gather(geometry, blocks, rig.buffer() + 32);
  stream->scatter(geometry, blocks, rig.buffer() + 32);
  stream->fill(rig.buffer(), 0, 3);
  ASSERT_TRUE(stream->synchronize(kHang));
  using Kind = OperationInfo::Kind;
  const std::vector<std::pair<Kind, std::uint64_t>> expected = {{Kind::kCopyH2D, 64},
                                                                {Kind::kCopyD2H, 63},
                                                                {Kind::kGather, 10},
                                                                {Kind::kScatter, 10},
                                                                {Kind::kFill, 3}};
  ASSERT_EQ(seen.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(seen[i].kind, expected[i].first) << i;
    EXPECT_EQ(seen[i].bytes, expected[i].second) << i;
  }
}

TEST(HostLink, InterceptorDelaysAndFailsOperations) {
  Rig rig(64, {}, [](const OperationInfo& info) {
    return OperationVerdict{.delay = milliseconds(3),
                            .fail = info.kind == OperationInfo::Kind::kGather};
  });
  const auto stream = rig.device().create_stream();
  EXPECT_GE(time_of(rig.device(), *stream, [&] { stream->fill(rig.buffer(), 7, 64); }),
            milliseconds(3));
  const auto event = rig.device().create_event();
  const std::vector<BlockId> blocks = {BlockId(0)};
  stream->gather(make_block_geometry({{rig.buffer(), 8, 8}}, 2), blocks, rig.buffer() + 32);
  stream->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kFailed);
  EXPECT_NE(event->failure().find("gather"), std::string::npos);
}

TEST(HostLink, ViewRunsEachOperationOnTheCallingThreadBeforeTheCallReturns) {
  std::vector<std::thread::id> threads;
  Rig rig(64, {}, [&](const OperationInfo&) {
    threads.push_back(std::this_thread::get_id());
    return OperationVerdict{};
  });
  const auto engine = rig.device().view_stream(0);
  engine->fill(rig.buffer(), 5, 64);
  rig.store(*engine, 0, 64);
  EXPECT_EQ(rig.host(), std::vector<std::uint8_t>(64, 5));
  EXPECT_EQ(threads, std::vector<std::thread::id>(2, std::this_thread::get_id()));
}

TEST(HostLinkDeathTest, DeviceStopsWhenItDiesBeforeItsStreams) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto device = make_host_device();
        const auto stream = device->view_stream(0);
        device.reset();
      },
      "before 1 of its streams");
}

}  // namespace
}  // namespace kvferry::gpu
