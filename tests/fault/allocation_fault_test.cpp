// SPDX-License-Identifier: Apache-2.0
// The 1st, 2nd, ... allocation that a constructor makes fails, until none does: nothing is left
// behind.
#include "allocation_fault.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"
#include "kvferry/gpu/host_link.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "borrowed_device.hpp"
#include "one_class.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace kvferry::fault {
namespace {

constexpr std::uint64_t kBlockBytes = 64;
constexpr std::uint32_t kNumBlocks = 16;
constexpr std::uint32_t kNumSlots = 256;

class AllocationFaults : public ::testing::Test {
 protected:
  AllocationFaults()
      : pool_(kNumBlocks * kBlockBytes), device_(gpu::make_host_device()), arena_(make_arena()) {
    at_rest_ = gpu::host_device_usage(*device_);
  }

  std::unique_ptr<cpu_tier::Arena> make_arena() {
    // Several registrations.
    return std::make_unique<cpu_tier::Arena>(
        *device_, kBlockBytes, kNumSlots,
        cpu_tier::ArenaOptions{.pinned_piece_bytes = 1, .max_registration_bytes = 1});
  }
  gpu::BlockGeometry geometry() {
    return gpu::make_block_geometry({{.base = reinterpret_cast<std::uintptr_t>(pool_.data()),
                                      .block_stride_bytes = kBlockBytes,
                                      .bytes = kBlockBytes}},
                                    kNumBlocks);
  }

  /// `make` makes an object and drops it. Its allocations fail in turn.
  void expect_strong(std::uint64_t at_least, const std::function<void()>& make) {
    make();  // What is made once and kept is made here.
    std::uint64_t nth = 1;
    for (;; ++nth) {
      SCOPED_TRACE("allocation " + std::to_string(nth));
      const std::int64_t num_live = num_live_allocations();
      bool fired = false;
      {
        const AllocationFault fault(nth);
        try {
          make();
        } catch (const std::bad_alloc&) {
        } catch (const Error&) {
          // Device memory that the heap does not give is a ResourceError.
        }
        fired = fault.fired();
      }
      EXPECT_EQ(num_live_allocations(), num_live) << "leaks";
      EXPECT_EQ(gpu::host_device_usage(*device_), at_rest_);
      ASSERT_FALSE(HasFailure());
      if (!fired) break;
    }
    EXPECT_GT(nth, at_least) << "too few allocations: the fault does not reach them";
  }

  std::vector<std::uint8_t> pool_;
  std::unique_ptr<gpu::Device> device_;
  std::unique_ptr<cpu_tier::Arena> arena_;
  gpu::HostDeviceUsage at_rest_;
};

TEST_F(AllocationFaults, TheFaultFailsTheNthAllocationOfThisThreadOnce) {
  // A compiler may leave a new out whose pointer nobody sees.
  void* volatile seen = nullptr;
  const auto is_given = [&seen] {
    try {
      seen = ::operator new(1);
    } catch (const std::bad_alloc&) {
      return false;
    }
    ::operator delete(seen);
    return true;
  };
  std::array<bool, 3> given{};
  std::array<bool, 3> fired{};
  {
    const AllocationFault fault(2);
    for (std::size_t i = 0; i < given.size(); ++i) {
      given[i] = is_given();
      fired[i] = fault.fired();
    }
  }
  EXPECT_EQ(given, (std::array{true, false, true}));
  EXPECT_EQ(fired, (std::array{false, true, true}));
}

TEST_F(AllocationFaults, ATierThatCannotBeBuiltLeavesNothing) {
  // Index entries, keys and slot records.
  expect_strong(3, [] { cpu_tier::PlainTier tier(kNumSlots); });
}

TEST_F(AllocationFaults, AReservationThatCannotBeMadeChangesNothing) {
  cpu_tier::PlainTier tier(kNumSlots);
  tier.grow_to(kNumSlots);
  const cpu_tier::BlockKey key =
      cpu_tier::BlockKey::make(std::as_bytes(std::span("key")), GroupId(0));
  expect_strong(1, [&] {
    const auto reservation = tier.reserve({&key, 1});
    EXPECT_TRUE(reservation.ok());
  });
  EXPECT_EQ(tier.snapshot().num_free, kNumSlots);
  tier.check_invariants();
}

TEST_F(AllocationFaults, AnArenaThatCannotBeBuiltLeavesNothing) {
  expect_strong(8, [this] { make_arena(); });
}

TEST_F(AllocationFaults, ATransferEngineThatCannotBeBuiltLeavesNothing) {
  expect_strong(8, [this] {
    const transfer::TransferEngine engine(*device_, {geometry()}, *arena_,
                                          {.staging_bytes = 4 * kBlockBytes});
  });
}

TEST_F(AllocationFaults, ARankThatCannotBeBuiltLeavesNothing) {
  expect_strong(16, [this] {
    connector::WorkerOptions options;
    options.num_chunks = kNumSlots;
    options.transfer.staging_bytes = 4 * kBlockBytes;
    const connector::WorkerEngine engine(std::make_unique<transfer::BorrowedDevice>(*device_),
                                         geometry(), options);
  });
}

TEST_F(AllocationFaults, ASchedulerSideThatCannotBeBuiltLeavesNothing) {
  expect_strong(4, [] {
    connector::SchedulerOptions options;
    options.hash_tokens = 4;
    options.num_blocks = kNumBlocks;
    options.classes = {{1, {kBlockBytes}}};
    options.max_chunks = kNumSlots;
    const connector::SchedulerEngine engine(std::move(options));
  });
}

}  // namespace
}  // namespace kvferry::fault
