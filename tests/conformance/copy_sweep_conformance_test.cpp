// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <cstring>
#include <iterator>
#include <random>
#include <utility>

namespace kvferry::gpu {
namespace {

constexpr std::uint8_t kUntouched = 0xee;
/// Bytes at either end of a destination that no run reaches.
constexpr std::size_t kGuardBytes = 256;
/// Of runs that are larger every second one goes one way, the others the other.
constexpr std::size_t kOneWayBytes = std::size_t{4} << 20U;
// What threads do with a copy does not depend on its size from some MiB on.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kLargestBytes = std::size_t{8} << 20U;
#else
constexpr std::size_t kLargestBytes = std::size_t{64} << 20U;
#endif
constexpr CopyCall kCalls[] = {CopyCall::kDeviceDefault, CopyCall::kPerRun, CopyCall::kBatch};
constexpr CopyDirection kDirections[] = {CopyDirection::kHostToDevice,
                                         CopyDirection::kDeviceToHost};

/// Batches of every size and alignment. Runs are named by offsets into two images; every byte of
/// the destination's is checked, those between the runs too.
class CopySweepConformance : public DeviceTest {
 protected:
  /// Copies `runs` from `source` into an untouched image of `destination_bytes`.
  void expect_moved(CopyDirection direction, CopyCall call, std::span<const CopyRun> runs,
                    std::span<const std::uint8_t> source, std::size_t destination_bytes) {
    const bool loads = direction == CopyDirection::kHostToDevice;
    HostMemory host(device(), loads ? source.size() : destination_bytes);
    const auto on_device = device().allocate(loads ? destination_bytes : source.size());
    const auto stream = device().create_stream();
    if (loads) {
      std::memcpy(host.bytes().data(), source.data(), source.size());
      stream->fill(on_device->address(), kUntouched, destination_bytes);
    } else {
      upload(source, on_device->address());
      std::memset(host.bytes().data(), kUntouched, destination_bytes);
    }
    const std::uintptr_t from = loads ? host.address() : on_device->address();
    const std::uintptr_t to = loads ? on_device->address() : host.address();
    std::vector<CopyRun> placed(runs.begin(), runs.end());
    for (CopyRun& run : placed) {
      run.source += from;
      run.destination += to;
    }
    const auto moved = device().create_event();
    stream->copy(direction, placed, call);
    stream->record(*moved);
    ASSERT_EQ(moved->wait(kHang), EventState::kDone) << moved->failure();

    HostMemory back(device(), loads ? destination_bytes : 1);
    if (loads) copy_back(on_device->address(), back);
    expect_image(runs, source, loads ? back.bytes() : host.bytes(),
                 std::string(to_string(direction)) + ", " + to_string(call));
  }

 private:
  void copy_back(std::uintptr_t address, HostMemory& to) {
    const auto stream = device().create_stream();
    const CopyRun run = {to.address(), address, to.bytes().size()};
    stream->copy(CopyDirection::kDeviceToHost, {&run, 1});
    ASSERT_TRUE(stream->synchronize(kHang));
  }

  /// Each run's bytes at its place, and nothing else.
  static void expect_image(std::span<const CopyRun> runs, std::span<const std::uint8_t> source,
                           std::span<const std::uint8_t> found, const std::string& how) {
    std::vector<CopyRun> ascending(runs.begin(), runs.end());
    std::sort(ascending.begin(), ascending.end(),
              [](const CopyRun& a, const CopyRun& b) { return a.destination < b.destination; });
    ascending.push_back({found.size(), 0, 0});
    std::size_t at = 0;
    for (const CopyRun& run : ascending) {
      for (; at < run.destination; ++at) {
        ASSERT_EQ(found[at], kUntouched) << how << ": byte " << at << ", which no run names";
      }
      const auto* const moved = found.data() + run.destination;
      const auto* const meant = source.data() + run.source;
      if (run.bytes != 0 && std::memcmp(moved, meant, run.bytes) != 0) {
        const auto wrong = std::mismatch(moved, moved + run.bytes, meant);
        FAIL() << how << ", " << runs.size() << " runs: byte " << wrong.first - moved
               << " of a run of " << run.bytes << " is " << unsigned{*wrong.first} << " and not "
               << unsigned{*wrong.second};
      }
      at += run.bytes;
    }
  }
};
KVFERRY_INSTANTIATE_CONFORMANCE(CopySweepConformance);

TEST_P(CopySweepConformance, EverySmallSizeBetweenAllAlignments) {
  constexpr std::size_t kAlignments = 16;
  constexpr std::size_t kMaxBytes = 48;
  constexpr std::size_t kCell = 64;
  static_assert(kCell >= kMaxBytes + kAlignments);
  // Each size is at least one batch of 256 cells, a run between each two alignments.
  const std::size_t image_bytes = 2 * kGuardBytes + kAlignments * kAlignments * kCell;
  const auto source = pattern(image_bytes, 1);
  for (std::size_t bytes = 1; bytes <= kMaxBytes; ++bytes) {
    std::vector<CopyRun> runs;
    for (std::size_t i = 0; i < kAlignments * kAlignments; ++i) {
      const std::size_t cell = kGuardBytes + i * kCell;
      runs.push_back({cell + i / kAlignments, cell + i % kAlignments, bytes});
    }
    for (const CopyDirection direction : kDirections) {
      for (const CopyCall call : kCalls) {
        expect_moved(direction, call, runs, source, image_bytes);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CopySweepConformance, PowersOfTwoAndTheirNeighbours) {
  const auto source = pattern(kLargestBytes + 2 * kGuardBytes, 2);
  std::mt19937 random(2);
  std::size_t num_moved = 0;
  for (std::size_t power = 64; power <= kLargestBytes; power *= 2) {
    for (const std::size_t bytes : {power - 1, power, power + 1}) {
      const CopyRun run = {kGuardBytes + random() % 16, random() % 16, bytes};
      for (const CopyDirection direction : kDirections) {
        // In turn, so that the largest do not take every time.
        const std::size_t turn = num_moved++;
        if (power > kOneWayBytes && (turn / 2 + turn) % 2 == 0) continue;
        expect_moved(direction, kCalls[turn % std::size(kCalls)], {&run, 1},
                     std::span(source).first(run.source + bytes),
                     run.destination + bytes + kGuardBytes);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CopySweepConformance, BatchesOfEveryCountMoveRunsOfMixedSizes) {
  constexpr std::size_t kCounts[] = {1, 2, 3, 7, 32, 33, 255, 256, 1023, 1024, 4095, kMaxBatchRuns};
  std::mt19937 random(3);
  for (const std::size_t count : kCounts) {
    SCOPED_TRACE("a batch of " + std::to_string(count));
    // The more runs, the smaller the largest: 2 to 18 bits.
    const unsigned max_bits = count < 64 ? 18 : (count < 2000 ? 12 : 9);
    std::vector<CopyRun> runs;
    std::size_t source_end = 0;
    std::size_t destination_end = kGuardBytes;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t bytes = 1 + random() % (std::size_t{1} << (random() % max_bits + 1));
      source_end += random() % 40;
      destination_end += random() % 40;  // often none: neighbours that touch
      runs.push_back({destination_end, source_end, bytes});
      source_end += bytes;
      destination_end += bytes;
    }
    std::shuffle(runs.begin(), runs.end(), random);
    const auto source = pattern(source_end, static_cast<std::uint8_t>(count));
    for (const CopyDirection direction : kDirections) {
      for (const CopyCall call : kCalls) {
        expect_moved(direction, call, runs, source, destination_end + kGuardBytes);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CopySweepConformance, RejectsABatchInWhichAnyTwoDestinationsShareAByte) {
  constexpr std::size_t kCount = 512;
  constexpr std::size_t kBytes = 8;
  constexpr std::size_t kSize = 2 * kCount * kBytes;
  HostMemory host(device(), kSize);
  const auto buffer = device().allocate(kSize);
  const auto stream = device().create_stream();
  std::mt19937 random(4);
  for (const CopyDirection direction : kDirections) {
    const bool loads = direction == CopyDirection::kHostToDevice;
    const std::uintptr_t to = loads ? buffer->address() : host.address();
    const std::uintptr_t from = loads ? host.address() : buffer->address();
    for (int round = 0; round < 50; ++round) {
      std::vector<CopyRun> runs;
      for (std::size_t i = 0; i < kCount; ++i) {
        runs.push_back({to + i * 2 * kBytes, from + i * 2 * kBytes, kBytes});
      }
      std::shuffle(runs.begin(), runs.end(), random);
      stream->copy(direction, runs);
      // Another size and place for one of them, over the first, the last or all bytes of another.
      CopyRun& wrong = runs[random() % kCount];
      const CopyRun& hit = runs[random() % kCount];
      if (&wrong == &hit) continue;
      wrong.bytes = 1 + random() % (2 * kBytes);
      wrong.destination = hit.destination + random() % (kBytes - 1) - (wrong.bytes - 1);
      wrong.source = from;
      if (wrong.destination < to || wrong.destination + wrong.bytes > to + kSize) continue;
      EXPECT_THROW(stream->copy(direction, runs), DeviceError) << to_string(direction);
    }
  }
  EXPECT_TRUE(stream->synchronize(kHang));
}

}  // namespace
}  // namespace kvferry::gpu
