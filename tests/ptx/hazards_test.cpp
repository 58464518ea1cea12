// SPDX-License-Identifier: Apache-2.0
// Each hazard by the smallest kernel that has it, and the same kernel without it.
#include "interpreter/fault.hpp"
#include "interpreter/launch.hpp"
#include "interpreter/parser.hpp"
#include "small_kernel.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace kvferry::ptx {
namespace {

constexpr std::uint64_t kSums = 0x8'0000;
constexpr std::uint64_t kSource = 0x10'0000;
constexpr std::uint64_t kDestination = 0x20'0000;
constexpr std::size_t kBytes = 256;
constexpr std::uint32_t kSharedBytes = 1024;

struct Result {
  std::optional<Hazard> hazard;
  std::string what;
  std::vector<std::uint8_t> destination;
  /// The first number that could be added to.
  std::uint64_t sum = 0;
};

Result run_small(const std::string& body, std::uint32_t num_threads, std::uint64_t seed) {
  const Kernel kernel = parse_kernel(small_module(body), "small");
  GlobalMemory memory;
  std::vector<std::uint8_t> source(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::uint8_t>(i);
  memory.map(kSource, Access::kRead, source);
  memory.map(kSums, Access::kAdd, std::vector<std::uint8_t>(kBytes));
  memory.map(kDestination, Access::kWrite, std::vector<std::uint8_t>(kBytes));
  const std::array<std::uint64_t, 2> parameter{kSource, kDestination};
  Random random(seed);
  Result done;
  try {
    run_launch(kernel, {1, num_threads, kSharedBytes}, std::as_bytes(std::span(parameter)), memory,
               random, 10'000);
  } catch (const Fault& fault) {
    done.hazard = fault.hazard();
    done.what = fault.what();
  }
  done.destination = memory.ranges().back().bytes;
  std::memcpy(&done.sum, memory.host_address(kSums, sizeof(done.sum)), sizeof(done.sum));
  return done;
}

/// %rd1 and %rd2: source and destination. %r1: the lane.
constexpr const char* kAddresses =
    "ld.param.u64 %rd1, [small_param_0];\nld.param.u64 %rd2, [small_param_0+8];\n"
    "mov.u32 %r1, %tid.x;\n";

/// And %r3: a barrier behind 512 bytes of stages, at %r2; %rd3: a policy.
constexpr const char* kBarrier =
    "mov.u32 %r2, stages;\nadd.s32 %r3, %r2, 512;\n"
    "createpolicy.fractional.L2::evict_first.b64 %rd3, 1.0;\n"
    "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra $L_ready;\n"
    "mbarrier.init.shared::cta.b64 [%r3], 1;\nfence.proxy.async.shared::cta;\n"
    "$L_ready:\nbar.warp.sync -1;\n";

std::string expect(const char* bytes) {
  return std::string("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], ") + bytes + ";\n";
}
std::string load(const char* to, const char* bytes) {
  return std::string("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes") +
         ".L2::cache_hint [" + to + "], [%rd1], " + bytes + ", [%r3], %rd3;\n";
}
std::string wait(const char* parity) {
  return std::string("{\n.reg .pred done;\nagain:\n") +
         "mbarrier.try_wait.parity.shared::cta.b64 done, [%r3], " + parity +
         ";\n@!done bra again;\n}\n";
}
std::string store(const char* to, const char* bytes) {
  return std::string("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [") + to +
         "], [%r2], " + bytes + ", %rd3;\n";
}
constexpr const char* kCommit = "cp.async.bulk.commit_group;\n";
constexpr const char* kWaitRead = "cp.async.bulk.wait_group.read 0;\n";
constexpr const char* kWaitAll = "cp.async.bulk.wait_group 0;\n";
constexpr const char* kEnd = "ret;";

struct Case {
  const char* name;
  std::string body;
  std::optional<Hazard> hazard;
  std::uint32_t num_threads = 1;

  friend void PrintTo(const Case& one, std::ostream* to) { *to << one.name; }
};

std::vector<Case> plain_cases() {
  const std::string begin = kAddresses;
  return {
      {"CopiesAWord", begin + "ld.global.u32 %r4, [%rd1];\nst.global.u32 [%rd2], %r4;\nret;", {}},
      {"ReadsBeyondItsSource", begin + "ld.global.u32 %r4, [%rd1+256];\nret;", Hazard::kBounds},
      {"ReadsAcrossTheEnd", begin + "ld.global.v2.u64 {%rd4, %rd5}, [%rd1+248];\nret;",
       Hazard::kAlignment},
      {"ReadsItsDestination", begin + "ld.global.u32 %r4, [%rd2];\nret;", Hazard::kBounds},
      {"WritesItsSource", begin + "st.global.u32 [%rd1], %r1;\nret;", Hazard::kBounds},
      {"WritesAnOddWord", begin + "st.global.u32 [%rd2+2], %r1;\nret;", Hazard::kAlignment},
      {"TwoLanesWriteOneWord", begin + "st.global.u32 [%rd2], %r1;\nret;", Hazard::kWrittenTwice,
       2},
      {"ReadsAnUnwrittenRegister", begin + "st.global.u32 [%rd2], %r9;\nret;", Hazard::kUndefined},
      {"ReadsBeyondItsParameter", "ld.param.u64 %rd1, [small_param_0+16];\nret;", Hazard::kBounds},
      {"RunsForEver", "$L_here:\nbra.uni $L_here;\nret;", Hazard::kStuck},
      {"HasNoEnd", begin, Hazard::kLaunch},
  };
}

std::vector<Case> bulk_cases() {
  const std::string begin = std::string(kAddresses) + kBarrier;
  const std::string loaded = begin + expect("64") + load("%r2", "64") + wait("0");
  const std::string stored = loaded + store("%rd2", "64") + kCommit;
  return {
      {"CopiesThroughAStage", stored + kWaitAll + kEnd, {}},
      {"StoresBeforeItWaits",
       begin + expect("64") + load("%r2", "64") + store("%rd2", "64") + kCommit + kWaitAll + kEnd,
       Hazard::kReadBeforeWrite},
      {"StoresWhatNothingLoaded", begin + store("%rd2", "64") + kCommit + kWaitAll + kEnd,
       Hazard::kReadBeforeWrite},
      {"ReloadsWhatIsBeingStored",
       stored + expect("64") + load("%r2", "64") + wait("1") + kWaitAll + kEnd,
       Hazard::kWriteBeforeRead},
      {"ReloadsWhatHasBeenRead",
       stored + kWaitRead + expect("64") + load("%r2", "64") + wait("1") + kWaitAll + kEnd,
       {}},
      {"LoadsOverALoad",
       begin + expect("128") + load("%r2", "64") + load("%r2", "64") + wait("0") + kEnd,
       Hazard::kWriteBeforeRead},
      {"LoadsOverItsBarrier", begin + expect("64") + load("%r3", "64") + kEnd, Hazard::kBarrier},
      {"LoadsBeyondSharedMemory", begin + expect("64") + load("%r2+1008", "64") + kEnd,
       Hazard::kBounds},
      {"LoadsEightBytes", begin + expect("8") + load("%r2", "8") + kEnd, Hazard::kAlignment},
      {"LoadsNothing", begin + expect("0") + load("%r2", "0") + kEnd, Hazard::kAlignment},
      {"StoresBeyondItsDestination", loaded + store("%rd2+224", "64") + kEnd, Hazard::kBounds},
      {"EndsWithoutCommitting", loaded + store("%rd2", "64") + kEnd, Hazard::kUnfinished},
      {"EndsBeforeItsStore", stored + kEnd, Hazard::kUnfinished},
      {"EndsBeforeItsLoad", begin + expect("64") + load("%r2", "64") + kEnd, Hazard::kUnfinished},
      {"LoadsMoreThanItExpects", begin + expect("32") + load("%r2", "64") + wait("0") + kEnd,
       Hazard::kBarrier},
      {"ExpectsWhatNothingLoads", begin + expect("64") + wait("0") + kEnd, Hazard::kStuck},
      {"ExpectsMoreThanCanBeCounted", begin + expect("1048576") + kEnd, Hazard::kBarrier},
      {"ArrivesOnceTooOften", begin + expect("64") + expect("64") + kEnd, Hazard::kBarrier},
      {"MissesAPhase", begin + expect("0") + expect("0") + expect("0") + wait("0") + kEnd,
       Hazard::kBarrier},
      {"WaitsForABarrierThatIsNone",
       std::string(kAddresses) + "mov.u32 %r3, stages;\n" + wait("0") + kEnd, Hazard::kBarrier},
      {"PutsABarrierAtAnOddPlace",
       "mov.u32 %r3, stages;\nmbarrier.init.shared::cta.b64 [%r3+4], 1;\nret;", Hazard::kAlignment},
      {"InitialisesABarrierTwice", begin + "mbarrier.init.shared::cta.b64 [%r3], 1;\nret;",
       Hazard::kBarrier},
      {"HasNoPolicy", begin + "mov.u64 %rd3, 0;\n" + expect("64") + load("%r2", "64") + kEnd,
       Hazard::kUndefined},
  };
}

/// Lane 0 loads, lane 1 stores: what one knows, the other has to learn.
std::vector<Case> warp_cases() {
  const std::string begin =
      std::string(kAddresses) + kBarrier + "@%p1 bra $L_one;\n" + expect("64") + load("%r2", "64");
  const std::string one = store("%rd2", "64") + kCommit + kWaitAll + kEnd;
  return {
      {"LearnsAtTheWarpsBarrier",
       begin + wait("0") + "bar.warp.sync -1;\nret;\n$L_one:\nbar.warp.sync -1;\n" + one,
       {},
       2},
      {"LearnsFromTheBarrierItself", begin + "ret;\n$L_one:\n" + wait("0") + one, {}, 2},
      {"TrustsToLuck", begin + wait("0") + "ret;\n$L_one:\n" + one, Hazard::kReadBeforeWrite, 2},
      {"UsesABarrierThatALaneMayNotHaveFenced",
       std::string(kAddresses) + "mov.u32 %r3, stages;\nsetp.ne.s32 %p1, %r1, 0;\n" +
           "@%p1 bra $L_one;\nmbarrier.init.shared::cta.b64 [%r3], 1;\nbar.warp.sync -1;\nret;\n" +
           "$L_one:\nbar.warp.sync -1;\n" + expect("0") + kEnd,
       Hazard::kBarrier, 2},
      {"WaitsForALaneThatDoesNotCome",
       std::string(kAddresses) + kBarrier + "@%p1 bra $L_one;\nbar.warp.sync -1;\nret;\n$L_one:\n" +
           wait("0") + kEnd,
       Hazard::kStuck, 2},
  };
}

/// %rd3: the first sum. %rd4: what a lane adds.
std::string sum_begin() {
  return std::string(kAddresses) + "mov.u64 %rd3, " + std::to_string(kSums) +
         ";\ncvt.u64.u32 %rd4, %r1;\n";
}

std::vector<Case> sum_cases() {
  const std::string begin = sum_begin();
  return {
      {"AddsInOneStep", begin + "red.global.add.u64 [%rd3], %rd4;\nret;", {}, 32},
      {"LoadsASum", begin + "ld.global.u64 %rd5, [%rd3];\nret;", Hazard::kBounds},
      {"StoresASum", begin + "st.global.u64 [%rd3], %rd4;\nret;", Hazard::kBounds},
      {"AddsToItsDestination", begin + "red.global.add.u64 [%rd2], %rd4;\nret;", Hazard::kBounds},
      {"AddsBeyondTheSums", begin + "red.global.add.u64 [%rd3+256], %rd4;\nret;", Hazard::kBounds},
      {"AddsAtAnOddAddress", begin + "red.global.add.u64 [%rd3+4], %rd4;\nret;",
       Hazard::kAlignment},
      {"ShufflesWithALaneThatIsNotThere",
       begin + "shfl.sync.bfly.b32 %r4|%p1, %r1, 16, 31, -1;\nret;", Hazard::kUndefined, 16},
      {"ShufflesWithinHalfAWarp", begin + "shfl.sync.bfly.b32 %r4|%p1, %r1, 1, 4127, -1;\nret;",
       Hazard::kUndefined, 32},
      {"ShufflesAtTwoPlaces",
       begin + "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra $L_one;\n" +
           "shfl.sync.bfly.b32 %r4|%p2, %r1, 1, 31, -1;\nret;\n$L_one:\n" +
           "shfl.sync.bfly.b32 %r4|%p2, %r1, 1, 31, -1;\nret;",
       Hazard::kStuck, 2},
      {"WaitsForALaneThatDoesNotShuffle",
       begin + "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra $L_one;\n" +
           "shfl.sync.bfly.b32 %r4|%p2, %r1, 1, 31, -1;\nret;\n$L_one:\nbra.uni $L_one;\nret;",
       Hazard::kStuck, 2},
  };
}

std::vector<Case> cases() {
  std::vector<Case> all = plain_cases();
  for (const std::vector<Case>& more : {bulk_cases(), warp_cases(), sum_cases()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

class PtxHazards : public testing::TestWithParam<Case> {};

TEST_P(PtxHazards, AreFoundWhateverTheOrder) {
  constexpr std::uint64_t kNumOrders = 50;
  for (std::uint64_t seed = 0; seed < kNumOrders; ++seed) {
    const Result done = run_small(GetParam().body, GetParam().num_threads, seed);
    ASSERT_EQ(done.hazard, GetParam().hazard) << done.what;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PtxHazards, testing::ValuesIn(cases()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(PtxInterpreter, MovesTheBytes) {
  const std::string begin = std::string(kAddresses) + kBarrier;
  const Result done = run_small(begin + expect("64") + load("%r2", "64") + wait("0") +
                                    store("%rd2+16", "64") + kCommit + kWaitAll + kEnd,
                                1, 0);
  ASSERT_EQ(done.hazard, std::nullopt) << done.what;
  for (std::size_t i = 0; i < kBytes; ++i) {
    EXPECT_EQ(done.destination[i], i >= 16 && i < 80 ? i - 16 : 0) << i;
  }
}

TEST(PtxInterpreter, ExchangesHalvesOfRegistersAndAddsThem) {
  // Each lane has its number, and five times as much in the upper half.
  std::string body = sum_begin() + "mul.lo.s64 %rd4, %rd4, 21474836481;\n";
  for (const char* distance : {"16", "8", "4", "2", "1"}) {
    body += std::string("mov.b64 {%r4, %r5}, %rd4;\nshfl.sync.bfly.b32 %r6|%p1, %r4, ") + distance +
            ", 31, -1;\nshfl.sync.bfly.b32 %r7|%p1, %r5, " + distance +
            ", 31, -1;\nmov.b64 %rd5, {%r6, %r7};\nadd.s64 %rd4, %rd4, %rd5;\n";
  }
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Result done = run_small(body + "red.global.add.u64 [%rd3], %rd4;\nret;", 32, seed);
    ASSERT_EQ(done.hazard, std::nullopt) << done.what;
    const std::uint64_t of_warp = 31 * 32 / 2;
    EXPECT_EQ(done.sum, 32 * (of_warp + (5 * of_warp << 32U)));
  }
}

TEST(PtxInterpreter, SaysTheInstructionTheLaneAndTheBlock) {
  const Result done = run_small(std::string(kAddresses) + "st.global.u32 [%rd1], %r1;\nret;", 1, 0);
  EXPECT_EQ(done.what,
            "Bounds: 4 bytes at 0x100000 are a source, and written\n"
            "  small, line 15: st.global.u32 [%rd1], %r1 (lane 0 of block 0)");
}

TEST(PtxInterpreter, RefusesALaunchWithAnotherParameter) {
  const Kernel kernel = parse_kernel(small_module("ret;"), "small");
  GlobalMemory memory;
  Random random(0);
  EXPECT_THROW(run_launch(kernel, {}, {}, memory, random), Fault);
}

}  // namespace
}  // namespace kvferry::ptx
