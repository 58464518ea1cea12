// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "made_up_machine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <stop_token>
#include <sys/mman.h>
#include <sys/resource.h>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
};

/// A device that only registers host memory, and remembers what is registered; its n-th
/// registration fails.
class RegistrationRecorder : public gpu::Device {
 public:
  explicit RegistrationRecorder(std::size_t fail_the_nth = 0) : fail_nth(fail_the_nth) {}

  gpu::BackendKind kind() const override { return backend; }
  std::string description() const override { return "registration recorder"; }
  gpu::DeviceTraits traits() const override { return {}; }
  std::optional<gpu::DeviceLoss> lost() const override { return std::nullopt; }
  gpu::MemoryInfo memory_info() const override { return {}; }
  std::unique_ptr<gpu::Stream> create_stream(gpu::StreamPriority /*priority*/) override {
    throw DeviceError("no streams here");
  }
  std::unique_ptr<gpu::Stream> view_stream(std::uintptr_t) override {
    throw DeviceError("no streams here");
  }
  std::unique_ptr<gpu::Event> create_event() override { throw DeviceError("no events here"); }
  void prepare(const gpu::BlockGeometry&) override {}
  std::unique_ptr<gpu::DeviceBuffer> allocate(std::uint64_t) override {
    throw ResourceError("no memory here");
  }
  std::unique_ptr<gpu::HostRegistration> register_host(void* address,
                                                       std::uint64_t bytes) override {
    if (ranges.size() + 1 == fail_nth) throw DeviceError("registration refused");
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    ranges.push_back(Range{begin, begin + bytes});
    return std::make_unique<Registration>(*this, begin);
  }

  gpu::BackendKind backend = gpu::BackendKind::kHost;
  /// Every range ever registered, in order.
  std::vector<Range> ranges;
  std::size_t num_registered = 0;
  /// 0: none.
  std::size_t fail_nth;

 private:
  class Registration : public gpu::HostRegistration {
   public:
    Registration(RegistrationRecorder& recorder, std::uintptr_t address)
        : recorder_(recorder), address_(address) {
      ++recorder_.num_registered;
    }
    ~Registration() override {
      // Unregistered before it is unmapped: the memory can still be read.
      EXPECT_EQ(*reinterpret_cast<const volatile unsigned char*>(address_), 0);
      --recorder_.num_registered;
    }
    std::uintptr_t device_address() const override { return address_; }

   private:
    RegistrationRecorder& recorder_;
    std::uintptr_t address_;
  };
};

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

constexpr std::uint64_t kPage = 4096;
const ArenaOptions kPieces{.pinned_piece_bytes = 8 << 20, .max_registration_bytes = 8 << 20};

TEST(ChunksPerPiece, PiecesEndWhereAPageAndAChunkEnd) {
  EXPECT_EQ(chunks_per_piece(kPage, kPage, 10 * kPage), 10U);
  EXPECT_EQ(chunks_per_piece(3 * kPage, kPage, 10 * kPage), 3U);
  EXPECT_EQ(chunks_per_piece(512, kPage, 10 * kPage), 80U);
  EXPECT_EQ(chunks_per_piece(1536, kPage, 10 * kPage), 24U);  // 8 chunks are 3 pages.
  EXPECT_EQ(chunks_per_piece(std::uint64_t{1} << 20, kPage, std::uint64_t{2} << 30), 2048U);
}

TEST(ChunksPerPiece, PieceIsLargerThanAskedForWhereNoMultipleFits) {
  EXPECT_EQ(chunks_per_piece(4 * kPage, kPage, kPage), 1U);
  EXPECT_EQ(chunks_per_piece(4097, kPage, kPage), 4096U);
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
      const Range range = device.ranges[piece];
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
    const Arena arena(device, 1 << 20, 64, kPieces);
    EXPECT_EQ(device.num_registered, 8U);
    EXPECT_GE(mapped_kib(), before + 65536);
  }
  EXPECT_EQ(device.num_registered, 0U);
  EXPECT_LT(mapped_kib(), before + 65536);
}

TEST(Arena, FailedRegistrationLeavesNothingBehind) {
  const std::uint64_t before = mapped_kib();
  RegistrationRecorder device(5);
  EXPECT_THROW(Arena(device, 1 << 20, 64, kPieces), DeviceError);
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

// LMCache#5127: a tier larger than the machine is OOM-killed instead of refused.
TEST(Arena, RefusesMoreThanTheBudgetBeforeMapping) {
  const MadeUpMachine machine;
  machine.write_available(1023);
  RegistrationRecorder device;
  const ArenaOptions options{.pinned_piece_bytes = 1 << 20, .machine = machine.root};
  EXPECT_THROW(Arena(device, 4096, 256, options), ResourceError);
  EXPECT_TRUE(device.ranges.empty());
  EXPECT_NO_THROW(Arena(device, 4096, 255, options));
}

TEST(Arena, ARegistrationIsOfWholePieces) {
  RegistrationRecorder device;
  const Arena arena(device, kPage, 100,
                    {.pinned_piece_bytes = 8 * kPage, .max_registration_bytes = 30 * kPage});
  ASSERT_EQ(device.ranges.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(device.ranges[i].end - device.ranges[i].begin, (i < 4 ? 24 : 4) * kPage);
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

// Others took the memory since: an error before a page is touched, and not the kernel's signal.
TEST(Arena, TheBudgetIsCheckedAgainForEachPiece) {
  const MadeUpMachine machine;
  machine.write_available(65'536);
  RegistrationRecorder device;
  Arena arena(
      device, 1 << 20, 64,
      {.pinned_piece_bytes = 8 << 20, .start = ArenaStart::kEmpty, .machine = machine.root});
  EXPECT_EQ(arena.grow(1), 8U);
  machine.write_available(8191);
  EXPECT_THROW(arena.grow(1), ResourceError);
  EXPECT_EQ(arena.num_ready(), 8U);
  EXPECT_EQ(device.ranges.size(), 1U);
  machine.write_available(8192);
  EXPECT_EQ(arena.grow(1), 8U);
}

// Two ranks that each ask for 60 % of what there is: the second is refused though nothing is
// touched.
TEST(Arena, WhatAnotherOneWasGrantedIsNotGrantedAgainUntilItIsTouched) {
  const MadeUpMachine machine;
  machine.write_available(100 << 10);
  RegistrationRecorder device;
  const ArenaOptions options{
      .pinned_piece_bytes = 20 << 20, .start = ArenaStart::kEmpty, .machine = machine.root};
  Arena first(device, 1 << 20, 60, options);
  EXPECT_THROW(Arena(device, 1 << 20, 60, options), ResourceError);
  EXPECT_NO_THROW(Arena(device, 1 << 20, 40, options));
  EXPECT_EQ(first.grow(1), 20U);
  machine.write_available(80 << 10);
  EXPECT_NO_THROW(Arena(device, 1 << 20, 40, options));
  EXPECT_THROW(Arena(device, 1 << 20, 41, options), ResourceError);
  first.end_growth();
  EXPECT_NO_THROW(Arena(device, 1 << 20, 80, options));
}

// An engine that asks for far too much, and is told so, is no reason to refuse another one.
TEST(Arena, OneThatIsRefusedTakesNothingFromAnotherBesideIt) {
  const MadeUpMachine machine;
  machine.write_available(100 << 10);
  const ArenaOptions options{.start = ArenaStart::kEmpty, .machine = machine.root};
  const std::jthread greedy([&](const std::stop_token& stop) {
    RegistrationRecorder device;
    while (!stop.stop_requested()) {
      EXPECT_THROW(Arena(device, 1 << 20, 1 << 20, options), ResourceError);
    }
  });
  RegistrationRecorder device;
  for (int i = 0; i < 50; ++i) EXPECT_NO_THROW(Arena(device, 1 << 20, 60, options));
}

TEST(Arena, TakesItsPartOfWhatThereIsWhereLessWillDo) {
  const MadeUpMachine machine;
  machine.write_available(100 << 10);
  RegistrationRecorder device;
  const ArenaOptions options{.start = ArenaStart::kEmpty,
                             .group = {"engine", 2},
                             .shortage = Shortage::kTakeLess,
                             .machine = machine.root};
  const Arena first(device, 1 << 20, 120, options);
  EXPECT_EQ(first.num_chunks(), 50U);
  ASSERT_FALSE(first.warnings().empty());
  EXPECT_NE(first.warnings().front().find("takes 50 of 120 slots: "), std::string::npos);
  const Arena second(device, 1 << 20, 120, options);
  EXPECT_EQ(second.num_chunks(), 50U);
  EXPECT_THROW(Arena(device, 1 << 20, 120, options), ResourceError);
}

TEST(Arena, SlowHugePagesAreGivenUp) {
  RegistrationRecorder device;
  for (const double slow : {0.0, 1e18}) {
    const Arena arena(device, 1 << 20, 64,
                      {.pinned_piece_bytes = 16 << 20,
                       .max_registration_bytes = 16 << 20,
                       .pages = PageKind::kTransparent,
                       .slow_bytes_per_second = slow});
    const ArenaReport report = arena.report();
    EXPECT_EQ(report.pages, PageKind::kTransparent);
    EXPECT_EQ(report.gave_up_huge_pages, slow > 0.0);
    // The first piece says so; whether it got huge pages is the kernel's affair.
    EXPECT_LE(report.huge_page_share, slow > 0.0 ? 0.26 : 1.0);
  }
}

TEST(Arena, SaysOnceThatItsFirstMemoryCameSlowly) {
  using std::chrono::hours;
  using std::chrono::nanoseconds;
  struct Case {
    nanoseconds long_wait;
    double slow_bytes_per_second;
    std::size_t num_warnings;
  };
  RegistrationRecorder device;
  // Any wait is long, and any rate slow; a wait that was short, at any rate; a rate that was high.
  for (const Case& one :
       {Case{nanoseconds{0}, 1e18, 1}, Case{hours{1}, 1e18, 0}, Case{nanoseconds{0}, 0.0, 0}}) {
    Arena arena(device, 1 << 20, 8,
                {.pinned_piece_bytes = 2 << 20,
                 .max_registration_bytes = 2 << 20,
                 .start = ArenaStart::kEmpty,
                 .slow_bytes_per_second = one.slow_bytes_per_second,
                 .long_wait = one.long_wait});
    EXPECT_TRUE(arena.warnings().empty());
    while (arena.grow(1) > 0) {
    }
    ASSERT_EQ(arena.warnings().size(), one.num_warnings);
    if (one.num_warnings == 0) continue;
    EXPECT_EQ(arena.warnings().front().find("the first 2 MiB of the CPU tier took "), 0U)
        << arena.warnings().front();
    EXPECT_NE(arena.warnings().front().find("pinned_piece_bytes"), std::string::npos);
  }
}

TEST(Arena, ReportsWhatItGot) {
  const auto topology = std::make_shared<const MachineTopology>();
  RegistrationRecorder device;
  const std::uint32_t node = topology->nodes().front().number;
  Arena arena(device, 1 << 20, 16,
              {.start = ArenaStart::kEmpty,
               .pages = PageKind::kNormal,
               .placement = {topology, node, "a test"}});
  EXPECT_EQ(arena.report().share_on_node, std::nullopt);
  while (arena.grow(1) > 0) {
  }
  const ArenaReport report = arena.report();
  EXPECT_EQ(report.pages, PageKind::kNormal);
  EXPECT_EQ(report.huge_page_share, 0.0);
  EXPECT_EQ(report.node, node);
  EXPECT_EQ(report.share_on_node.value_or(1.0), 1.0);
}

// A pool that has room, in a cgroup that has not: mapping would pass, and the first touch be a
// signal.
TEST(Arena, NotOfThePoolWhereACgroupKeepsItFromThis) {
  const MadeUpMachine machine;
  machine.write_proc("meminfo", "HugePages_Total: 64\nHugePages_Free: 64\nHugepagesize: 2048 kB\n");
  machine.write_proc("self/cgroup", "0::/a\n");
  machine.write_cgroup("cgroup.controllers", "hugetlb\n");
  machine.write_cgroup("a/hugetlb.2MB.max", "4194304\n");
  RegistrationRecorder device;
  ArenaOptions options{.start = ArenaStart::kEmpty, .machine = machine.root};
  EXPECT_EQ(Arena(device, 1 << 20, 5, options).report().pages, PageKind::kTransparent);
  options.pages = PageKind::kPool;
  try {
    const Arena arena(device, 1 << 20, 5, options);
    FAIL() << "6 MiB of huge pages fit into 4 MiB";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find("hugetlb.2MB.max"), std::string::npos) << error.what();
  }
}

TEST(Arena, WarnsOfALowMemlockLimitWhereADevicePins) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit low{.rlim_cur = kPage, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  RegistrationRecorder device;
  EXPECT_TRUE(Arena(device, kPage, 2).warnings().empty());
  device.backend = gpu::BackendKind::kCuda;
  EXPECT_TRUE(Arena(device, kPage, 1).warnings().empty());
  const std::vector<std::string> warnings = Arena(device, kPage, 2).warnings();
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings.front().find("ulimit -l"), std::string::npos) << warnings.front();
  EXPECT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

TEST(Arena, OfThePoolIfItHasEnough) {
  const HugePagePool pool = huge_page_pool();
  RegistrationRecorder device;
  const auto num_chunks = static_cast<std::uint32_t>(pool.num_free + 1);
  EXPECT_THROW(Arena(device, pool.page_bytes, num_chunks,
                     {.start = ArenaStart::kEmpty, .pages = PageKind::kPool}),
               ResourceError);
  if (pool.num_free == 0) GTEST_SKIP() << "the pool of huge pages is empty";
  const Arena arena(device, pool.page_bytes, 1);
  EXPECT_EQ(arena.report().pages, PageKind::kPool);
  EXPECT_EQ(arena.report().huge_page_share, 1.0);
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
