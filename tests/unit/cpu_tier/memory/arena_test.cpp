// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "registration_recorder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <stop_token>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

/// Kibibytes mapped by this process.
std::uint64_t mapped_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmSize:")) return std::stoull(line.substr(7));
  }
  return 0;
}

/// Resident pages of the chunks in [first, end), which begin and end where pages do.
std::uint64_t num_resident_pages(const Arena& arena, ChunkId first, ChunkId end) {
  const std::uintptr_t begin = arena.chunk_address(first);
  const std::uint64_t bytes = arena.chunk_address(end) - begin;
  std::vector<unsigned char> resident(bytes / HostMapping::page_bytes());
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(begin), bytes, resident.data()), 0);
  return static_cast<std::uint64_t>(std::count(resident.begin(), resident.end(), 1));
}

constexpr std::uint64_t kSmallPage = 4096;
const ArenaOptions kSmallPieces{.pinned_piece_bytes = 8 << 20, .max_registration_bytes = 8 << 20};

TEST(ChunksPerPiece, PiecesEndWhereAPageAndAChunkEnd) {
  EXPECT_EQ(chunks_per_piece(kSmallPage, kSmallPage, 10 * kSmallPage), 10U);
  EXPECT_EQ(chunks_per_piece(3 * kSmallPage, kSmallPage, 10 * kSmallPage), 3U);
  EXPECT_EQ(chunks_per_piece(512, kSmallPage, 10 * kSmallPage), 80U);
  EXPECT_EQ(chunks_per_piece(1536, kSmallPage, 10 * kSmallPage), 24U);  // 8 chunks are 3 pages.
  EXPECT_EQ(chunks_per_piece(std::uint64_t{1} << 20, kSmallPage, std::uint64_t{2} << 30), 2048U);
}

TEST(ChunksPerPiece, PieceIsLargerThanAskedForWhereNoMultipleFits) {
  EXPECT_EQ(chunks_per_piece(4 * kSmallPage, kSmallPage, kSmallPage), 1U);
  EXPECT_EQ(chunks_per_piece(4097, kSmallPage, kSmallPage), 4096U);
}

TEST(Arena, ChunksAreContiguousAndWritable) {
  const auto device = gpu::make_host_device();
  const Arena arena(*device, 1000, 10);
  EXPECT_EQ(arena.num_chunks(), 10U);
  EXPECT_EQ(arena.chunk_bytes(), 1000U);
  EXPECT_EQ(arena.chunks_per_piece(), 10U);
  for (std::uint32_t chunk = 0; chunk < 10; ++chunk) {
    EXPECT_EQ(arena.chunk_address(ChunkId(chunk)), arena.chunk_address(ChunkId(0)) + chunk * 1000);
    std::memset(reinterpret_cast<void*>(arena.chunk_address(ChunkId(chunk))), 1, 1000);
  }
}

// lightllm#1527, vllm#51081: registration in pieces; no copy straddles two of them.
TEST(Arena, PiecesCoverTheChunksWithoutOverlap) {
  const std::uint64_t page = HostMapping::page_bytes();
  for (const std::uint64_t chunk_bytes : {page, 3 * page, page / 4, page + page / 2, page - 1}) {
    RegistrationRecorder device;
    constexpr std::uint32_t kNumChunks = 10'001;
    const Arena arena(device, chunk_bytes, kNumChunks,
                      {.pinned_piece_bytes = 64 * page, .max_registration_bytes = 64 * page});
    ASSERT_GT(device.ranges.size(), 1U);
    std::uintptr_t end = arena.chunk_address(ChunkId(0));
    for (std::size_t piece = 0; piece < device.ranges.size(); ++piece) {
      const RegistrationRecorder::Range range = device.ranges[piece];
      EXPECT_EQ(range.begin, end);
      EXPECT_EQ(range.begin, arena.chunk_address(ChunkId(static_cast<std::uint32_t>(piece) *
                                                         arena.chunks_per_piece())));
      EXPECT_EQ(range.begin % page, 0U);
      EXPECT_EQ(range.end % page, 0U);
      end = range.end;
    }
    EXPECT_GE(end, arena.chunk_address(ChunkId(kNumChunks)));
    EXPECT_LT(end, arena.chunk_address(ChunkId(kNumChunks)) + page);
  }
}

TEST(Arena, DestructionUnregistersAllPiecesAndUnmaps) {
  RegistrationRecorder device;
  const std::uint64_t before = mapped_kib();
  {
    const Arena arena(device, 1 << 20, 64, kSmallPieces);
    EXPECT_EQ(device.num_registered, 8U);
    EXPECT_GE(mapped_kib(), before + 65536);
  }
  EXPECT_EQ(device.num_registered, 0U);
  EXPECT_LT(mapped_kib(), before + 65536);
}

TEST(Arena, FailedRegistrationLeavesNothingBehind) {
  const std::uint64_t before = mapped_kib();
  RegistrationRecorder device(5);
  EXPECT_THROW(Arena(device, 1 << 20, 64, kSmallPieces), DeviceError);
  EXPECT_EQ(device.ranges.size(), 4U);
  EXPECT_EQ(device.num_registered, 0U);
  EXPECT_LT(mapped_kib(), before + 65536);
}

TEST(Arena, NothingToHoldIsAConfigError) {
  RegistrationRecorder device;
  EXPECT_THROW(Arena(device, 0, 4), ConfigError);
  EXPECT_THROW(Arena(device, 4096, 0), ConfigError);
}

TEST(Arena, SizeThatOverflowsIsAResourceError) {
  RegistrationRecorder device;
  EXPECT_THROW(Arena(device, std::uint64_t{1} << 40, std::uint32_t{1} << 31), ResourceError);
}

TEST(Arena, ARegistrationIsOfWholePieces) {
  RegistrationRecorder device;
  const Arena arena(
      device, kSmallPage, 100,
      {.pinned_piece_bytes = 8 * kSmallPage, .max_registration_bytes = 30 * kSmallPage});
  ASSERT_EQ(device.ranges.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(device.ranges[i].end - device.ranges[i].begin, (i < 4 ? 24 : 4) * kSmallPage);
  }
  for (std::uint32_t chunk = 0; chunk < 100; ++chunk) {
    EXPECT_EQ(arena.chunk_device_address(ChunkId(chunk)), arena.chunk_address(ChunkId(chunk)));
  }
}

TEST(Arena, AnEmptyOneBecomesReadyPieceByPiece) {
  RegistrationRecorder device;
  Arena arena(device, 1 << 20, 60, {.pinned_piece_bytes = 8 << 20, .start = ArenaStart::kEmpty});
  EXPECT_EQ(arena.num_ready(), 0U);
  EXPECT_TRUE(device.ranges.empty());
  EXPECT_EQ(arena.grow(1), 8U);
  EXPECT_EQ(arena.num_ready(), 8U);
  EXPECT_EQ(arena.grow(20 << 20), 16U);
  EXPECT_EQ(arena.num_ready(), 24U);
  EXPECT_EQ(device.num_registered, 2U);
  EXPECT_EQ(arena.grow(std::uint64_t{1} << 30), 36U);
  EXPECT_EQ(arena.grow(1), 0U);
  std::memset(reinterpret_cast<void*>(arena.chunk_address(ChunkId(0))), 0, 60 << 20);
}

TEST(Arena, AStoppedGrowthLeavesWhatWasReady) {
  RegistrationRecorder device;
  Arena arena(device, 1 << 20, 64, {.pinned_piece_bytes = 8 << 20, .start = ArenaStart::kEmpty});
  EXPECT_EQ(arena.grow(1), 8U);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(arena.grow(1, stop.get_token()), 0U);
  EXPECT_EQ(arena.num_ready(), 8U);
  EXPECT_EQ(device.num_registered, 1U);
}

TEST(Arena, AFailedGrowthIsRolledBackAndCanBeTriedAgain) {
  RegistrationRecorder device(2);
  Arena arena(device, 1 << 20, 64, {.pinned_piece_bytes = 8 << 20, .start = ArenaStart::kEmpty});
  EXPECT_EQ(arena.grow(1), 8U);
  EXPECT_THROW(arena.grow(std::uint64_t{32} << 20), DeviceError);
  EXPECT_EQ(arena.num_ready(), 8U);
  EXPECT_EQ(num_resident_pages(arena, ChunkId(8), ChunkId(40)), 0U);
  device.fail_nth = 0;
  EXPECT_EQ(arena.grow(1), 8U);
}

#ifdef KVFERRY_TEST_HOOKS
TEST(Arena, EveryFailureOnTheWayLeavesNothingBehind) {
  const std::uint64_t before = mapped_kib();
  std::uint64_t num_failures = 0;
  for (bool built = false; !built; num_failures += built ? 0 : 1) {
    RegistrationRecorder device;
    test_hooks::reset();
    test_hooks::fail_nth(num_failures + 1);
    try {
      const Arena arena(device, 1 << 20, 64,
                        {.pinned_piece_bytes = 16 << 20, .max_registration_bytes = 16 << 20});
      built = true;
    } catch (const Error&) {
    }
    EXPECT_EQ(device.num_registered, 0U);
    EXPECT_LT(mapped_kib(), before + 65536);
  }
  EXPECT_EQ(test_hooks::fault_names(),
            (std::vector<std::string>{"arena.map", "arena.populate", "arena.register"}));
  EXPECT_EQ(num_failures, 9U);  // One mapping, four populations, four registrations.
  test_hooks::reset();
}
#endif

}  // namespace
}  // namespace kvferry::cpu_tier
