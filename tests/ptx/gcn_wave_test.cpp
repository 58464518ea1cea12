// SPDX-License-Identifier: Apache-2.0
// The interpreter of AMD's assembly, by small kernels. The parameter, 16 bytes at s[6:7], holds the
// addresses of a source and of a destination of 256 bytes each.
#include "gcn/launch.hpp"
#include "gcn/parser.hpp"
#include "interpreter/fault.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace kvferry::gcn {
namespace {

using ptx::Hazard;

constexpr std::uint64_t kSums = 0x8000'0000;
constexpr std::uint64_t kSource = 0x1'0000'0000;
constexpr std::uint64_t kDestination = 0x2'0000'0000;
constexpr std::size_t kBytes = 256;

/// The first line of `body` is line 2.
std::string assembly_of(const std::string& body) {
  return "small:\n" + body +
         "\n\t.section .rodata\n\t.amdhsa_kernel small\n\t.amdhsa_kernarg_size 16\n"
         "\t.amdhsa_user_sgpr_count 8\n\t.amdhsa_user_sgpr_private_segment_buffer 1\n"
         "\t.amdhsa_user_sgpr_dispatch_ptr 1\n\t.amdhsa_user_sgpr_kernarg_segment_ptr 1\n"
         "\t.amdhsa_next_free_vgpr 16\n\t.end_amdhsa_kernel\n";
}

struct Result {
  std::optional<Hazard> hazard;
  std::string what;
  std::vector<std::uint32_t> words;
  /// The first number that could be added to.
  std::uint64_t sum = 0;
};

Result run_small(const std::string& body) {
  const Kernel kernel = parse_kernel(assembly_of(body), "small");
  ptx::GlobalMemory memory;
  std::vector<std::uint8_t> source(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::uint8_t>(i);
  memory.map(kSource, ptx::Access::kRead, source);
  memory.map(kSums, ptx::Access::kAdd, std::vector<std::uint8_t>(kBytes));
  memory.map(kDestination, ptx::Access::kWrite, std::vector<std::uint8_t>(kBytes));
  const std::array<std::uint64_t, 2> parameter{kSource, kDestination};
  ptx::Random random(0);
  Result result;
  try {
    run_launch(kernel, {1, 64, 0}, std::as_bytes(std::span(parameter)), memory, random, 1000);
  } catch (const ptx::Fault& fault) {
    result.hazard = fault.hazard();
    result.what = fault.what();
  }
  std::memcpy(&result.sum, memory.host_address(kSums, sizeof(result.sum)), sizeof(result.sum));
  result.words.resize(kBytes / 4);
  std::memcpy(result.words.data(), memory.host_address(kDestination, kBytes), kBytes);
  return result;
}

/// v[2:3]: the lane's word of the source; v[4:5]: of the destination.
constexpr const char* kAddresses =
    "s_load_dwordx2 s[10:11], s[6:7], 0x0\ns_load_dwordx2 s[12:13], s[6:7], 0x8\n"
    "v_lshlrev_b32_e32 v1, 2, v0\ns_waitcnt lgkmcnt(0)\n"
    "v_add_co_u32_e32 v2, vcc, s10, v1\nv_mov_b32_e32 v3, s11\n"
    "v_addc_co_u32_e32 v3, vcc, 0, v3, vcc\n"
    "v_add_co_u32_e32 v4, vcc, s12, v1\nv_mov_b32_e32 v5, s13\n"
    "v_addc_co_u32_e32 v5, vcc, 0, v5, vcc\n";
constexpr const char* kStore = "global_store_dword v[4:5], v6, off\ns_endpgm\n";

std::string complaint(const std::string& body) {
  try {
    static_cast<void>(parse_kernel(assembly_of(body), "small"));
  } catch (const UnknownAssembly& error) {
    return error.what();
  }
  return {};
}

TEST(GcnParser, NamesTheOpcodeThatItDoesNotKnowAndItsLine) {
  const std::string said = complaint("s_nop 0\nds_read_b32 v1, v0\ns_endpgm");
  EXPECT_NE(said.find("line 3"), std::string::npos) << said;
  EXPECT_NE(said.find("'ds_read_b32'"), std::string::npos) << said;
}

TEST(GcnParser, RefusesWhatItCannotRead) {
  EXPECT_NE(complaint("v_mov_b32_e32 v1, lds_direct").find("'lds_direct'"), std::string::npos);
  EXPECT_NE(complaint("s_waitcnt expcnt(0)").find("expcnt"), std::string::npos);
  EXPECT_NE(complaint("s_branch .LBB9_9").find("'.LBB9_9'"), std::string::npos);
  EXPECT_NE(complaint("v_add_u32_e32 v1, v2").find("number of operands"), std::string::npos);
  EXPECT_NE(complaint("global_load_dword v1, v[2:3], off sc1").find("'sc1'"), std::string::npos);
}

struct Hazardous {
  const char* name;
  std::string body;
  std::optional<Hazard> hazard;

  friend void PrintTo(const Hazardous& one, std::ostream* to) { *to << one.name; }
};

std::vector<Hazardous> hazardous() {
  const std::string begin = kAddresses;
  const std::string load = begin + "global_load_dword v6, v[2:3], off\n";
  return {
      {"CopiesAWordALane", load + "s_waitcnt vmcnt(0)\n" + kStore, {}},
      {"StoresBeforeItWaits", load + kStore, Hazard::kReadBeforeWrite},
      {"OverwritesALoadUnderWay", load + "v_mov_b32_e32 v6, 0\n" + kStore,
       Hazard::kReadBeforeWrite},
      {"WaitsForTheFirstOfTwo",
       load + "global_load_dword v7, v[2:3], off\ns_waitcnt vmcnt(1)\n" + kStore,
       {}},
      {"UsesTheSecondOfTwo",
       load + "global_load_dword v7, v[2:3], off\ns_waitcnt vmcnt(1)\nv_mov_b32_e32 v6, v7\n" +
           kStore,
       Hazard::kReadBeforeWrite},
      {"WaitsForOneOfTwoScalars",
       "s_load_dword s10, s[6:7], 0x0\ns_load_dword s11, s[6:7], 0x4\ns_waitcnt lgkmcnt(1)\n"
       "s_mov_b32 s12, s10\ns_endpgm",
       Hazard::kReadBeforeWrite},
      {"ReadsBeyondItsSource", begin + "global_load_dword v6, v[2:3], off offset:4\ns_endpgm",
       Hazard::kBounds},
      {"ReadsBeyondItsParameter", "s_load_dword s10, s[6:7], 0x10\ns_endpgm", Hazard::kBounds},
      {"ReadsAnOddAddress", begin + "global_load_dword v6, v[2:3], off offset:2\ns_endpgm",
       Hazard::kAlignment},
      {"WritesOneWordFromAllLanes",
       begin + "v_mov_b32_e32 v4, s12\nv_mov_b32_e32 v5, s13\nv_mov_b32_e32 v6, 0\n" + kStore,
       Hazard::kWrittenTwice},
      {"UsesAnotherLanesValueBeforeItIsThere",
       begin + "v_mov_b32_e32 v7, 0\nds_bpermute_b32 v6, v7, v0\n" + kStore,
       Hazard::kReadBeforeWrite},
      {"WaitsForTheFirstOfTwoValues",
       begin + "v_mov_b32_e32 v7, 0\nds_bpermute_b32 v6, v7, v0\nds_bpermute_b32 v8, v7, v0\n" +
           "s_waitcnt lgkmcnt(1)\n" + kStore,
       {}},
      {"TakesTheValueOfALaneThatIsNotActive",
       begin + "v_mov_b32_e32 v7, 252\nv_cmp_gt_u32_e32 vcc, 3, v0\n" +
           "s_and_saveexec_b64 s[14:15], vcc\nds_bpermute_b32 v6, v7, v0\ns_endpgm",
       Hazard::kUndefined},
      {"AddsToItsDestination", begin + "global_atomic_add_x2 v[4:5], v[2:3], off\ns_endpgm",
       Hazard::kBounds},
      {"RunsForEver", ".LBB0_1:\ns_branch .LBB0_1\ns_endpgm", Hazard::kStuck},
      {"HasNoEnd", "s_nop 0", Hazard::kLaunch},
  };
}

class GcnHazards : public testing::TestWithParam<Hazardous> {};

TEST_P(GcnHazards, AreFound) {
  const Result result = run_small(GetParam().body);
  EXPECT_EQ(result.hazard, GetParam().hazard) << result.what;
}

INSTANTIATE_TEST_SUITE_P(All, GcnHazards, testing::ValuesIn(hazardous()),
                         [](const auto& one) { return std::string(one.param.name); });

/// What a lane stores after `body`, which leaves it in v6.
std::vector<std::uint32_t> words_after(const std::string& body) {
  const Result result = run_small(std::string(kAddresses) + body + kStore);
  EXPECT_EQ(result.hazard, std::nullopt) << result.what;
  return result.words;
}

TEST(GcnWave, RunsOnlyLanesThatAreActive) {
  const auto words = words_after(
      "v_mov_b32_e32 v6, 7\nv_cmp_gt_u32_e32 vcc, 3, v0\ns_and_saveexec_b64 s[14:15], vcc\n"
      "v_mov_b32_e32 v6, 9\ns_or_b64 exec, exec, s[14:15]\n");
  EXPECT_EQ(words[2], 9U);
  EXPECT_EQ(words[3], 7U);
  EXPECT_EQ(words[63], 7U);
}

TEST(GcnWave, CarriesAndBorrowsPerLane) {
  // Lane 0: 0 - 1 borrows; others do not.
  const auto words = words_after(
      "v_sub_co_u32_e32 v7, vcc, 0, v0\nv_mov_b32_e32 v8, 0\n"
      "v_subb_co_u32_e32 v6, vcc, 5, v8, vcc\n");
  EXPECT_EQ(words[0], 5U);
  EXPECT_EQ(words[1], 4U);
}

TEST(GcnWave, SelectsTheSecondSourceWhereTheBitIsSet) {
  const auto words = words_after(
      "v_cmp_eq_u32_e32 vcc, 1, v0\nv_mov_b32_e32 v7, 20\nv_cndmask_b32_e32 v6, 10, v7, vcc\n");
  EXPECT_EQ(words[0], 10U);
  EXPECT_EQ(words[1], 20U);
}

TEST(GcnWave, ReadsTheHalvesThatAPackedInstructionNames) {
  const auto words = words_after(
      "s_mov_b32 s14, 3\ns_mov_b32 s15, 4\nv_pk_mov_b32 v[8:9], s[14:15], s[14:15] op_sel:[1,0]\n"
      "v_lshlrev_b32_e32 v9, 8, v9\nv_or_b32_e32 v6, v8, v9\n");
  EXPECT_EQ(words[0], 0x304U);
}

TEST(GcnWave, TakesTheValueOfTheLaneThatItNames) {
  const auto words = words_after(
      "v_xor_b32_e32 v7, 16, v0\nv_lshlrev_b32_e32 v7, 2, v7\nv_add_u32_e32 v8, 100, v0\n"
      "ds_bpermute_b32 v6, v7, v8\ns_waitcnt lgkmcnt(0)\n");
  EXPECT_EQ(words[3], 119U);
  EXPECT_EQ(words[40], 156U);
}

TEST(GcnWave, AddsInOneStep) {
  const Result result = run_small(std::string(kAddresses) +
                                  "v_mov_b32_e32 v6, 0x80000000\nv_mov_b32_e32 v7, 0\n"
                                  "v_mov_b32_e32 v8, -1\nv_mov_b32_e32 v9, 0\n"
                                  "global_atomic_add_x2 v[6:7], v[8:9], off\ns_endpgm");
  EXPECT_EQ(result.hazard, std::nullopt) << result.what;
  EXPECT_EQ(result.sum, 64 * 0xffff'ffffULL);
}

TEST(GcnWave, LeavesACounterInScc) {
  const auto words = words_after(
      "s_mov_b32 s14, 4\nv_mov_b32_e32 v6, 0\n.LBB0_1:\nv_add_u32_e32 v6, 2, v6\n"
      "s_add_i32 s14, s14, -1\ns_cmp_lg_u32 s14, 0\ns_cbranch_scc1 .LBB0_1\n");
  EXPECT_EQ(words[5], 8U);
}

}  // namespace
}  // namespace kvferry::gcn
