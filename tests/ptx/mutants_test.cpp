// SPDX-License-Identifier: Apache-2.0
// A check that no fault can fail proves nothing: every mutant of every kernel must be found.
#include "mutants.hpp"

#include "interpreter/parser.hpp"
#include "modules.hpp"
#include "tested_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

namespace kvferry::ptx {
namespace {

std::string described(const std::optional<Hazard>& found) {
  return found ? name_of(*found) : "WrongBytes";
}

/// The first launch that shows the fault; its failure is empty if none of the usual ones does.
Outcome first_failure(const Interpret& interpret, const TestedKernel& one) {
  if (one.make_far_case) {
    Outcome far = run_case(interpret, one.make_far_case(), 1);
    if (!far.failure.empty()) return far;
  }
  for (std::uint64_t seed = 0; seed < one.num_seeds; ++seed) {
    Outcome outcome = run_case(interpret, one.make_case(seed), seed);
    if (!outcome.failure.empty()) return outcome;
  }
  return {};
}

void expect_found(const Mutant& mutant, const TestedKernel& one) {
  SCOPED_TRACE(one.test_name() + ": " + mutant.reason);
  const auto text = mutated(module_text(one.module), one.name, mutant);
  ASSERT_TRUE(text) << "the rule no longer fits the kernel's PTX: mutants.cpp";
  const Kernel kernel = parse_kernel(*text, one.name);
  const Outcome outcome = first_failure(interpreter_of(kernel), one);
  ASSERT_NE(outcome.failure, "") << "the mutant lives";
  const auto& expected = mutant.found_by;
  EXPECT_NE(std::find(expected.begin(), expected.end(), outcome.hazard), expected.end())
      << "found as " << described(outcome.hazard) << ": " << outcome.failure;
}

class PtxMutants : public testing::TestWithParam<Mutant> {};

TEST_P(PtxMutants, AreFound) {
  if (module_names().empty()) GTEST_SKIP() << "built without nvcc: there is no PTX to change";
  for (const TestedKernel& one : tested_kernels()) {
    const auto& kernels = GetParam().kernels;
    if (std::find(kernels.begin(), kernels.end(), one.name) == kernels.end()) continue;
    expect_found(GetParam(), one);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PtxMutants, testing::ValuesIn(mutants().begin(), mutants().end()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace kvferry::ptx
