// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/arena.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
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
  explicit RegistrationRecorder(std::size_t fail_nth = 0) : fail_nth_(fail_nth) {}

  gpu::BackendKind kind() const override { return gpu::BackendKind::kHost; }
  std::string description() const override { return "registration recorder"; }
  gpu::MemoryInfo memory_info() const override { return {}; }
  std::unique_ptr<gpu::Stream> create_stream() override { throw DeviceError("no streams here"); }
  std::unique_ptr<gpu::Stream> view_stream(std::uintptr_t) override {
    throw DeviceError("no streams here");
  }
  std::unique_ptr<gpu::Event> create_event() override { throw DeviceError("no events here"); }
  std::unique_ptr<gpu::DeviceBuffer> allocate(std::uint64_t) override {
    throw ResourceError("no memory here");
  }
  std::unique_ptr<gpu::HostRegistration> register_host(void* address,
                                                       std::uint64_t bytes) override {
    if (ranges.size() + 1 == fail_nth_) throw DeviceError("registration refused");
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    ranges.push_back(Range{begin, begin + bytes});
    return std::make_unique<Registration>(*this, begin);
  }

  /// Every range ever registered, in order.
  std::vector<Range> ranges;
  std::size_t num_registered = 0;

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

  std::size_t fail_nth_;
};

/// Kibibytes mapped by this process.
std::uint64_t mapped_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmSize:")) return std::stoull(line.substr(7));
  }
  return 0;
}

constexpr std::uint64_t kPage = 4096;

TEST(SlotsPerPiece, PiecesEndWhereAPageAndASlotEnd) {
  EXPECT_EQ(slots_per_piece(kPage, kPage, 10 * kPage), 10U);
  EXPECT_EQ(slots_per_piece(3 * kPage, kPage, 10 * kPage), 3U);
  EXPECT_EQ(slots_per_piece(512, kPage, 10 * kPage), 80U);
  EXPECT_EQ(slots_per_piece(1536, kPage, 10 * kPage), 24U);  // 8 slots are 3 pages.
  EXPECT_EQ(slots_per_piece(std::uint64_t{1} << 20, kPage, std::uint64_t{2} << 30), 2048U);
}

TEST(SlotsPerPiece, PieceIsLargerThanAskedForWhereNoMultipleFits) {
  EXPECT_EQ(slots_per_piece(4 * kPage, kPage, kPage), 1U);
  EXPECT_EQ(slots_per_piece(4097, kPage, kPage), 4096U);
}

TEST(Arena, SlotsAreContiguousAndWritable) {
  const auto device = gpu::make_host_device();
  const Arena arena(*device, 1000, 10);
  EXPECT_EQ(arena.num_slots(), 10U);
  EXPECT_EQ(arena.slot_bytes(), 1000U);
  EXPECT_EQ(arena.slots_per_piece(), 10U);
  for (std::uint32_t slot = 0; slot < 10; ++slot) {
    EXPECT_EQ(arena.slot_address(SlotId(slot)), arena.slot_address(SlotId(0)) + slot * 1000);
    std::memset(reinterpret_cast<void*>(arena.slot_address(SlotId(slot))), 1, 1000);
  }
}

// lightllm#1527, vllm#51081: registration in pieces; no copy straddles two of them.
TEST(Arena, PiecesCoverTheSlotsWithoutOverlap) {
  const std::uint64_t page = HostMapping::page_bytes();
  for (const std::uint64_t slot_bytes : {page, 3 * page, page / 4, page + page / 2, page - 1}) {
    RegistrationRecorder device;
    constexpr std::uint32_t kNumSlots = 10'001;
    const Arena arena(device, slot_bytes, kNumSlots, {.max_piece_bytes = 64 * page, .machine = {}});
    ASSERT_GT(device.ranges.size(), 1U);
    std::uintptr_t end = arena.slot_address(SlotId(0));
    for (std::size_t piece = 0; piece < device.ranges.size(); ++piece) {
      const Range range = device.ranges[piece];
      EXPECT_EQ(range.begin, end);
      EXPECT_EQ(range.begin, arena.slot_address(SlotId(static_cast<std::uint32_t>(piece) *
                                                       arena.slots_per_piece())));
      EXPECT_EQ(range.begin % page, 0U);
      EXPECT_EQ(range.end % page, 0U);
      end = range.end;
    }
    EXPECT_GE(end, arena.slot_address(SlotId(kNumSlots)));
    EXPECT_LT(end, arena.slot_address(SlotId(kNumSlots)) + page);
  }
}

TEST(Arena, DestructionUnregistersAllPiecesAndUnmaps) {
  RegistrationRecorder device;
  const std::uint64_t before = mapped_kib();
  {
    const Arena arena(device, 1 << 20, 64, {.max_piece_bytes = 8 << 20, .machine = {}});
    EXPECT_EQ(device.num_registered, 8U);
    EXPECT_GE(mapped_kib(), before + 65536);
  }
  EXPECT_EQ(device.num_registered, 0U);
  EXPECT_LT(mapped_kib(), before + 65536);
}

TEST(Arena, FailedRegistrationLeavesNothingBehind) {
  const std::uint64_t before = mapped_kib();
  RegistrationRecorder device(5);
  EXPECT_THROW(Arena(device, 1 << 20, 64, {.max_piece_bytes = 8 << 20, .machine = {}}),
               DeviceError);
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
  const std::filesystem::path proc =
      std::filesystem::path(::testing::TempDir()) / "kvferry_arena_proc";
  std::filesystem::create_directories(proc);
  std::ofstream(proc / "meminfo") << "MemAvailable:    1023 kB\n";
  RegistrationRecorder device;
  const ArenaOptions options{.max_piece_bytes = 1 << 20, .machine = {proc, proc / "none"}};
  EXPECT_THROW(Arena(device, 4096, 256, options), ResourceError);
  EXPECT_TRUE(device.ranges.empty());
  EXPECT_NO_THROW(Arena(device, 4096, 255, options));
  std::filesystem::remove_all(proc);
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
      const Arena arena(device, 1 << 20, 64, {.max_piece_bytes = 16 << 20, .machine = {}});
      built = true;
    } catch (const Error&) {
    }
    EXPECT_EQ(device.num_registered, 0U);
    EXPECT_LT(mapped_kib(), before + 65536);
  }
  EXPECT_EQ(test_hooks::fault_names(),
            (std::vector<std::string>{"arena.map", "arena.populate", "arena.register"}));
  EXPECT_EQ(num_failures, 6U);  // One mapping, one population, four pieces.
  test_hooks::reset();
}
#endif

}  // namespace
}  // namespace kvferry::cpu_tier
