// SPDX-License-Identifier: Apache-2.0
// Every kernel of every module of the build, on random launches.
#include "interpreter/mnemonics.hpp"
#include "interpreter/parser.hpp"
#include "kernels/code_objects.hpp"
#include "modules.hpp"
#include "seeds.hpp"
#include "tested_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace kvferry::ptx {
namespace {

class PtxKernels : public testing::TestWithParam<TestedKernel> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PtxKernels);

TEST_P(PtxKernels, MoveEveryByteAsTheHostEmulationDoes) {
  const Interpret interpret = interpreter_of(kernel_of(GetParam().module, GetParam().name));
  std::uint64_t num_instructions = 0;
  for_each_seed(GetParam().num_seeds, [&](std::uint64_t seed) {
    const Outcome outcome = run_case(interpret, GetParam().make_case(seed), seed);
    EXPECT_EQ(outcome.failure, "");
    num_instructions += outcome.num_instructions;
  });
  RecordProperty("thousand_instructions", static_cast<int>(num_instructions / 1000));
}

class PtxPackKernels : public testing::TestWithParam<TestedKernel> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PtxPackKernels);

std::vector<TestedKernel> pack_tested_kernels() {
  std::vector<TestedKernel> all = tested_kernels();
  std::erase_if(all, [](const TestedKernel& one) { return !one.make_far_case; });
  return all;
}

TEST_P(PtxPackKernels, MoveWhatLiesBeyondFourGiB) {
  const Interpret interpret = interpreter_of(kernel_of(GetParam().module, GetParam().name));
  EXPECT_EQ(run_case(interpret, GetParam().make_far_case(), 1).failure, "");
}

INSTANTIATE_TEST_SUITE_P(All, PtxKernels, testing::ValuesIn(tested_kernels()),
                         [](const auto& one) { return one.param.test_name(); });

INSTANTIATE_TEST_SUITE_P(All, PtxPackKernels, testing::ValuesIn(pack_tested_kernels()),
                         [](const auto& one) { return one.param.test_name(); });

TEST(PtxModules, HaveNoKernelThatIsNotRun) {
  if (module_names().empty()) {
    GTEST_SKIP() << "built without nvcc (or with KVFERRY_CUDA=OFF): no kernel's PTX is run";
  }
  for (const std::string& module : module_names()) {
    std::set<std::string> run;
    for (const TestedKernel& one : tested_kernels()) {
      if (one.module == module) run.insert(one.name);
    }
    const std::vector<std::string> names = kernel_names(module_text(module));
    EXPECT_EQ(run, std::set(names.begin(), names.end())) << module;
  }
}

// A row that no kernel needs is a row that no kernel tests.
TEST(PtxModules, UseEveryMnemonicThatTheInterpreterKnows) {
  constexpr int kVersionThatWasLookedAt = 13000;
  constexpr const char* kArchitecturesThatWereLookedAt = "75 80 89 90 100";
  if (gpu::cuda_toolkit_version() != kVersionThatWasLookedAt ||
      std::string(KVFERRY_CUDA_EMBEDDED) != kArchitecturesThatWereLookedAt) {
    GTEST_SKIP() << "another nvcc or other architectures may do without some of them";
  }
  std::set<std::string_view> used;
  for (const TestedKernel& one : tested_kernels()) {
    const Kernel& kernel = kernel_of(one.module, one.name);
    used.insert(kernel.mnemonics.begin(), kernel.mnemonics.end());
  }
  for (const Mnemonic& mnemonic : mnemonics()) {
    EXPECT_TRUE(used.contains(mnemonic.name)) << "no kernel has '" << mnemonic.name << "'";
  }
}

}  // namespace
}  // namespace kvferry::ptx
