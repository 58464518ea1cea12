// SPDX-License-Identifier: Apache-2.0
// The kernels for AMD's devices: their instructions, which the assembler only encodes.
#include "gcn/launch.hpp"
#include "gcn/opcodes.hpp"
#include "gcn/parser.hpp"
#include "gcn_modules.hpp"
#include "seeds.hpp"
#include "tested_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace kvferry::ptx {
namespace {

Interpret gcn_interpreter_of(const gcn::Kernel& kernel) {
  return [&kernel](const LaunchCase& launch, GlobalMemory& memory, Random& random) {
    return gcn::run_launch(kernel, launch.shape, launch.parameter, memory, random,
                           kMaxInstructions);
  };
}

class GcnKernels : public testing::TestWithParam<TestedKernel> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GcnKernels);

TEST_P(GcnKernels, MoveEveryByteAsTheHostEmulationDoes) {
  const Interpret interpret = gcn_interpreter_of(gcn_kernel_of(GetParam().module, GetParam().name));
  for_each_seed(GetParam().num_seeds, [&](std::uint64_t seed) {
    EXPECT_EQ(run_case(interpret, GetParam().make_case(seed), seed).failure, "");
  });
  if (!GetParam().make_far_case) return;
  EXPECT_EQ(run_case(interpret, GetParam().make_far_case(), 1).failure, "") << "beyond 4 GiB";
}

INSTANTIATE_TEST_SUITE_P(All, GcnKernels, testing::ValuesIn(tested_gcn_kernels()),
                         [](const auto& one) { return one.param.test_name(); });

TEST(GcnModules, HaveNoKernelThatIsNotRun) {
  if (gcn_module_names().empty()) {
    GTEST_SKIP() << "built without hipcc (or with KVFERRY_HIP=OFF): no kernel's assembly is run";
  }
  for (const std::string& module : gcn_module_names()) {
    std::set<std::string> run;
    for (const TestedKernel& one : tested_gcn_kernels()) {
      if (one.module == module) run.insert(one.name);
    }
    const std::vector<std::string> names = gcn::kernel_names(gcn_module_text(module));
    EXPECT_EQ(run, std::set(names.begin(), names.end())) << module;
  }
}

// A row that no kernel needs is a row that no kernel tests.
TEST(GcnModules, UseEveryOpcodeThatTheInterpreterKnows) {
  constexpr const char* kArchitecturesThatWereLookedAt = "gfx90a gfx940";
  if (std::string(KVFERRY_HIP_EMBEDDED) != kArchitecturesThatWereLookedAt) {
    GTEST_SKIP() << "another hipcc may do without some of them";
  }
  std::set<const gcn::Opcode*> used;
  for (const TestedKernel& one : tested_gcn_kernels()) {
    for (const gcn::Instruction& line : gcn_kernel_of(one.module, one.name).code) {
      used.insert(line.opcode);
    }
  }
  for (const gcn::Opcode& opcode : gcn::opcodes()) {
    EXPECT_TRUE(used.contains(&opcode)) << "no kernel has '" << opcode.name << "'";
  }
}

/// As in mutants.hpp.
struct GcnMutant {
  const char* name;
  std::vector<std::string> kernels;
  const char* pattern;
  const char* replacement;
  std::vector<std::optional<Hazard>> found_by;

  friend void PrintTo(const GcnMutant& mutant, std::ostream* to) { *to << mutant.name; }
};

const std::vector<GcnMutant>& gcn_mutants() {
  static const std::vector<std::string> kMoving{"kvferry_gather", "kvferry_scatter",
                                                "kvferry_gather_tagged", "kvferry_scatter_tagged"};
  static const std::vector<std::string> kSumming{"kvferry_gather_tagged", "kvferry_scatter_tagged",
                                                 "kvferry_sum"};
  static const std::vector<std::string> kAllKernels = [] {
    std::vector<std::string> all = kMoving;
    all.emplace_back("kvferry_sum");
    return all;
  }();
  static const std::vector<GcnMutant> kAll{
      {"WaitsForNoLoad",
       kAllKernels,
       R"(s_waitcnt vmcnt\(0\))",
       "s_nop 0",
       {Hazard::kReadBeforeWrite}},
      {"WaitsForOneLoadTooFew",
       kMoving,
       R"(s_waitcnt vmcnt\(7\))",
       "s_waitcnt vmcnt(8)",
       {Hazard::kReadBeforeWrite}},
      {"WaitsForNoParameter",
       kAllKernels,
       R"(s_waitcnt lgkmcnt\(0\))",
       "s_nop 0",
       {Hazard::kReadBeforeWrite}},
      {"KeepsOffsetsIn32Bits",
       kAllKernels,
       R"(v_mad_u64_u32 v\[\d+:(\d+)\][^\n]*)",
       "$&\n\tv_mov_b32_e32 v$1, 0",
       {Hazard::kBounds}},
      {"ForgetsWhoIsActive",
       kAllKernels,
       R"(s_and_saveexec_b64 (s\[\d+:\d+\]), vcc)",
       "s_mov_b64 $1, exec",
       {Hazard::kBounds, Hazard::kAlignment, Hazard::kWrittenTwice, Hazard::kStuck}},
      {"StoresHalfOfAVector",
       kMoving,
       R"(global_store_dwordx4 ([^,]+), v\[(\d+):\d+\])",
       "global_store_dword $1, v$2",
       {std::nullopt}},
      {"TakesAnotherWeight", kSumming, R"(0x7b1dcdaf)", "0x7b1dcdad", {std::nullopt}},
      {"TakesItsOwnLanesValue",
       kSumming,
       R"(ds_bpermute_b32 (v\d+), v\d+, (v\d+))",
       "v_mov_b32_e32 $1, $2",
       {std::nullopt}},
      {"WaitsForNoOtherLane",
       kSumming,
       R"(s_waitcnt lgkmcnt\(1\))",
       "s_nop 0",
       {Hazard::kReadBeforeWrite}},
      {"OverwritesTheSum",
       kSumming,
       R"(global_atomic_add_x2)",
       "global_store_dwordx2",
       {Hazard::kBounds}},
      {"AddsToItsNeighbour",
       kSumming,
       R"((global_atomic_add_x2 [^\n]*off))",
       "$1 offset:8",
       {Hazard::kBounds}},
  };
  return kAll;
}

std::string mutated(const std::string& module, const std::string& kernel, const GcnMutant& mutant) {
  const std::size_t begin = module.find("\n" + kernel + ":");
  const std::size_t end = module.find(".section", begin);
  const std::string body = module.substr(begin, end - begin);
  const std::string edited =
      std::regex_replace(body, std::regex(mutant.pattern), mutant.replacement);
  return edited == body ? std::string() : module.substr(0, begin) + edited + module.substr(end);
}

class GcnMutants : public testing::TestWithParam<GcnMutant> {};

TEST_P(GcnMutants, AreFound) {
  if (gcn_module_names().empty()) GTEST_SKIP() << "built without hipcc: there is nothing to change";
  for (const TestedKernel& one : tested_gcn_kernels()) {
    const auto& kernels = GetParam().kernels;
    if (std::find(kernels.begin(), kernels.end(), one.name) == kernels.end()) continue;
    SCOPED_TRACE(one.test_name());
    const std::string text = mutated(gcn_module_text(one.module), one.name, GetParam());
    ASSERT_NE(text, "") << "the rule no longer fits the kernel's assembly";
    const gcn::Kernel kernel = gcn::parse_kernel(text, one.name);
    Outcome outcome = run_case(gcn_interpreter_of(kernel), one.make_far_case(), 1);
    for (std::uint64_t seed = 0; seed < one.num_seeds && outcome.failure.empty(); ++seed) {
      outcome = run_case(gcn_interpreter_of(kernel), one.make_case(seed), seed);
    }
    ASSERT_NE(outcome.failure, "") << "the mutant lives";
    const auto& expected = GetParam().found_by;
    EXPECT_NE(std::find(expected.begin(), expected.end(), outcome.hazard), expected.end())
        << outcome.failure;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GcnMutants, testing::ValuesIn(gcn_mutants()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace kvferry::ptx
