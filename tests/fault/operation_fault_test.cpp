// SPDX-License-Identifier: Apache-2.0
// A scheduler side and two ranks, from registration to close; the 1st, 2nd, ... passage of each
// fault point fails, until none does. Nothing leaks, nothing hangs, and what the engine is told is
// right (engine_rig.hpp).
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "engine_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::fault {
namespace {

using Numbers = EngineRig::Numbers;

/// Where an operation can fail, and what must then happen.
struct FaultPoint {
  enum class When : std::uint8_t {
    kConstruction,  ///< A rank cannot be built: a typed error that names the cause.
    kTransfer,      ///< A transfer fails, or time is not told: the ranks go on.
    kHook           ///< A hook of a running rank throws: that rank stops.
  };
  const char* name;
  When when;
  const char* cause = "";
  /// Whether ring memory is in doubt afterwards: a launch may run that no event marks.
  enum class Ring : std::uint8_t { kQuiet, kMaybeInDoubt, kInDoubt } ring = Ring::kQuiet;
};
using When = FaultPoint::When;
using Ring = FaultPoint::Ring;

const std::vector<FaultPoint> kPoints = {
    {"arena.map", When::kConstruction, "mapping"},
    {"arena.populate", When::kConstruction, "populating"},
    {"arena.register", When::kConstruction, "registering slots"},
    {"gpu.host.register", When::kConstruction, "cannot register"},
    {"gpu.host.allocate", When::kConstruction, "bytes of host device memory"},
    {"gpu.host.stream", When::kConstruction, "cannot create a stream"},
    {"transfer.thread", When::kConstruction, "cannot start the transfer thread"},
    {"gpu.host.event", When::kTransfer},
    {"gpu.host.submit", When::kTransfer, "", Ring::kMaybeInDoubt},
    {"gpu.host.copy", When::kTransfer},
    {"gpu.host.pack", When::kTransfer},
    {"gpu.host.elapsed", When::kTransfer},
    {"transfer.gather", When::kTransfer},
    {"transfer.record_gather", When::kTransfer, "", Ring::kInDoubt},
    {"transfer.fence", When::kTransfer},
    {"transfer.submit", When::kTransfer},
    {"transfer.record", When::kTransfer},
    {"gpu.host.view_stream", When::kHook, "cannot view a stream"},
};

Numbers numbers(std::uint64_t first, std::uint64_t count) {
  Numbers result;
  for (std::uint64_t i = 0; i < count; ++i) result.push_back(first + i);
  return result;
}

/// A prompt that is stored is loaded by the next request that has it; both must succeed unless an
/// operation of theirs fails.
void store_and_load(EngineRig& rig, std::uint64_t first) {
  const std::string name = std::to_string(first);
  const bool over = test_hooks::num_faults() != 0 && !rig.has_ring_in_doubt();
  const std::uint32_t num_failed = rig.num_told_failed();
  rig.prefill("store " + name, numbers(first, 3));
  rig.settle();
  rig.finish("store " + name);
  const std::uint32_t num_blocks = rig.begin_load("load " + name, numbers(first, 3));
  rig.settle();
  if (!over) return;
  EXPECT_EQ(num_blocks, 3U) << "a fault that is over keeps blocks from being stored";
  EXPECT_EQ(rig.num_told_failed(), num_failed) << "a fault that is over fails a load";
}

void run_scenario(EngineRig& rig) {
  rig.register_ranks();
  // A prefill, more than the ring takes in one step: the rest goes through the backlog.
  rig.prefill("a", numbers(100, 5));
  rig.settle();
  // Decoding: blocks of two requests in one transfer.
  rig.prefill("b", numbers(200, 2));
  rig.settle();
  rig.step([&] { rig.finish("b"); });
  rig.decode("a", 105);
  rig.settle();
  rig.finish("a");

  rig.begin_load("c", numbers(100, 6));
  rig.settle();
  // Aborted while every rank has it.
  if (rig.begin_load("d", numbers(100, 6)) != 0) rig.step([&] { rig.abort_load("d"); });
  rig.settle();
  // Reset while a store and a load are under way.
  const std::uint32_t num_failed = rig.num_told_failed();
  rig.prefill("e", numbers(300, 3));
  const bool loads = rig.begin_load("f", numbers(200, 2)) != 0;
  rig.step([&] { rig.reset_cache(); });
  rig.settle();
  EXPECT_EQ(rig.num_told_failed(), num_failed + (loads ? 1U : 0U));
  EXPECT_EQ(rig.view().tier.num_evictable, 0U) << "found after a reset";
  rig.finish("e");

  store_and_load(rig, 400);
  store_and_load(rig, 500);
  // Closed with both directions under way.
  rig.prefill("g", numbers(600, 3));
  rig.begin_load("h", numbers(400, 3));
  rig.step();
  rig.close();
  const connector::SchedulerSnapshot now = rig.view();
  EXPECT_EQ(now.num_stores_in_flight, 0U);
  EXPECT_EQ(now.tier.num_writable + now.tier.num_aborted + now.tier.num_leased +
                now.tier.num_dying + now.tier.num_quarantined,
            0U);
}

class OperationFaults : public ::testing::TestWithParam<FaultPoint> {
 protected:
  OperationFaults() { test_hooks::reset(); }
  ~OperationFaults() override { test_hooks::reset(); }

  /// One run; what it threw, if anything.
  static std::string run() {
    std::unique_ptr<EngineRig> rig;
    try {
      rig = std::make_unique<EngineRig>();
    } catch (const Error& error) {
      EXPECT_EQ(GetParam().when, When::kConstruction) << error.what();
      return error.what();
    }
    try {
      run_scenario(*rig);
      const Ring ring = GetParam().ring;
      const bool in_doubt = ring == Ring::kInDoubt && test_hooks::num_faults() != 0;
      if (ring != Ring::kMaybeInDoubt) {
        EXPECT_EQ(rig->has_ring_in_doubt(), in_doubt);
      }
    } catch (const Error& error) {
      EXPECT_EQ(GetParam().when, When::kHook) << error.what();
      return error.what();
    }
    return {};
  }
};

TEST_P(OperationFaults, NothingLeaksHangsOrIsToldWrongWhicheverPassageFails) {
  const FaultPoint& point = GetParam();
  std::uint64_t nth = 1;
  for (;; ++nth) {
    SCOPED_TRACE(std::string("passage ") + std::to_string(nth) + " of " + point.name);
    test_hooks::reset();
    test_hooks::fail_nth_of(point.name, nth);
    const std::string error = run();
    const bool failed = test_hooks::num_faults() != 0;
    if (point.when != When::kTransfer) {
      EXPECT_EQ(!error.empty(), failed);
      if (failed) {
        EXPECT_NE(error.find(point.cause), std::string::npos) << error;
      }
    }
    ASSERT_FALSE(HasFailure());
    if (!failed) break;
  }
  EXPECT_GE(nth, 3U) << "each of two ranks comes past it";
}

INSTANTIATE_TEST_SUITE_P(Points, OperationFaults, ::testing::ValuesIn(kPoints),
                         [](const auto& point) {
                           std::string name = point.param.name;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// A fault point that is not in the list above is one that nobody has thought through.
TEST(OperationFaultList, NamesEveryPointOfTheScenario) {
  test_hooks::reset();
  {
    EngineRig rig;
    run_scenario(rig);
    EXPECT_EQ(rig.num_told_failed(), 1U) << "the load that was reset";
    EXPECT_GE(rig.num_told(), 5U) << "all but the one that close() may have cut off";
    EXPECT_GT(rig.view().skipped_ring, 0U) << "nothing went through the backlog";
  }
  std::vector<std::string> passed = test_hooks::fault_names();
  std::sort(passed.begin(), passed.end());
  std::vector<std::string> known;
  for (const FaultPoint& point : kPoints) known.emplace_back(point.name);
  std::sort(known.begin(), known.end());
  EXPECT_EQ(passed, known);
  test_hooks::reset();
}

}  // namespace
}  // namespace kvferry::fault
