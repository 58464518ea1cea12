// SPDX-License-Identifier: Apache-2.0
// What was embedded is what was asked for, and fit to be launched. No device is needed.
#include "kernels/code_objects.hpp"

#include "kvferry/gpu/built_kernels.hpp"

#include "kernel_image.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace kvferry::gpu {
namespace {

/// The words of a list that CMake gives.
std::set<std::string> words(const char* list, const std::string& prefix) {
  std::set<std::string> found;
  std::istringstream in(list);
  for (std::string word; in >> word;) found.insert(prefix + word);
  return found;
}

void expect_launchable(const KernelImage& image) {
  SCOPED_TRACE(image.arch);
  EXPECT_TRUE(image.undefined.empty()) << image.undefined.front();
  for (const auto& [name, facts] : image.kernels) {
    EXPECT_EQ(facts.local_bytes, 0U) << name << " spills";
    EXPECT_GT(facts.num_registers, 0U) << name;
    testing::Test::RecordProperty(image.arch + "_" + name + "_registers",
                                  static_cast<int>(facts.num_registers));
  }
}

std::set<std::string> names(const KernelImage& image) {
  std::set<std::string> found;
  for (const auto& [name, facts] : image.kernels) found.insert(name);
  return found;
}

const std::set<std::string> kVectorKernels{
    "kvferry_gather", "kvferry_scatter",     "kvferry_gather_tagged", "kvferry_scatter_tagged",
    "kvferry_sum",    "kvferry_co_run_gemm", "kvferry_co_run_stream"};
const std::set<std::string> kAllKernels = [] {
  std::set<std::string> all = kVectorKernels;
  all.insert({"kvferry_gather_bulk", "kvferry_scatter_bulk"});
  return all;
}();

TEST(CodeObjects, EveryCudaArchitectureHasItsKernelsWithoutSpills) {
  const auto expected = words(KVFERRY_CUDA_EMBEDDED, "sm_");
  if (expected.empty()) {
    EXPECT_TRUE(cuda_fatbin().empty());
    EXPECT_EQ(cuda_toolkit_version(), 0);
    EXPECT_EQ(cuda_newest_architecture(), 0);
    GTEST_SKIP() << "built without nvcc";
  }
  EXPECT_GE(cuda_toolkit_version(), 12040);
  std::set<std::string> embedded;
  int newest = 0;
  for (const KernelImage& image : read_cuda_fatbin(cuda_fatbin())) {
    const int number = std::stoi(image.arch.substr(image.arch.find('_') + 1));
    newest = std::max(newest, number);
    EXPECT_EQ(names(image), number >= 90 ? kAllKernels : kVectorKernels) << image.arch;
    if (image.arch.starts_with("sm_")) {
      embedded.insert(image.arch);
      expect_launchable(image);
      for (const auto& [name, facts] : image.kernels) {
        EXPECT_LE(facts.num_registers, 64U) << name << ": pack_launch.cpp counts on 4 CTAs";
      }
    } else {
      EXPECT_EQ(number, newest) << "PTX of the newest, for devices to come";
    }
  }
  EXPECT_EQ(cuda_newest_architecture(), newest);
  EXPECT_EQ(embedded, expected);
  const std::vector<std::string> told = built_kernels().cuda;
  EXPECT_EQ(std::set(told.begin(), told.end()), expected);
}

TEST(CodeObjects, DriverTakesCodeOfTheSameMajorOrThePtx) {
  constexpr std::array kBuilt{75, 80, 89, 90, 100};
  EXPECT_EQ(cuda_code_for(70, kBuilt), "");
  EXPECT_EQ(cuda_code_for(75, kBuilt), "sm_75");
  EXPECT_EQ(cuda_code_for(86, kBuilt), "sm_80");
  EXPECT_EQ(cuda_code_for(89, kBuilt), "sm_89");
  EXPECT_EQ(cuda_code_for(103, kBuilt), "sm_100");
  EXPECT_EQ(cuda_code_for(120, kBuilt), "PTX of sm_100");
  constexpr std::array kGap{89, 100};
  EXPECT_EQ(cuda_code_for(86, kGap), "");
  EXPECT_EQ(cuda_code_for(90, kGap), "");
  EXPECT_EQ(cuda_code_for(90, std::span<const int>{}), "");
}

TEST(CodeObjects, EveryHipArchitectureHasItsKernelsWithoutSpills) {
  const auto expected = words(KVFERRY_HIP_EMBEDDED, "");
  std::set<std::string> embedded;
  for (const HipCodeObject& object : hip_code_objects()) {
    embedded.emplace(object.arch);
    const KernelImage image = read_hip_bundle(object.bytes);
    EXPECT_EQ(image.arch, object.arch);
    EXPECT_EQ(names(image), kVectorKernels);
    expect_launchable(image);
  }
  EXPECT_EQ(embedded, expected);
  const std::vector<std::string> told = built_kernels().hip;
  EXPECT_EQ(std::set(told.begin(), told.end()), expected);
  if (expected.empty()) GTEST_SKIP() << "built without hipcc";
}

TEST(CodeObjects, SourceForRunTimeCompilationIsOneText) {
  const std::string_view source = pack_kernel_source();
  EXPECT_EQ(source.find("#include \""), std::string_view::npos);
  EXPECT_EQ(source.find("#pragma once"), std::string_view::npos);
  EXPECT_EQ(source.find('\0'), std::string_view::npos);
  for (const std::string& name : kAllKernels) {
    EXPECT_NE(source.find(name + "("), std::string_view::npos) << name;
  }
}

}  // namespace
}  // namespace kvferry::gpu
