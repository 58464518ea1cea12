// SPDX-License-Identifier: Apache-2.0
#include "tested_kernels.hpp"

#include "co_run_case.hpp"
#include "gcn_modules.hpp"
#include "kernels/code_objects.hpp"
#include "modules.hpp"
#include "pack_case.hpp"

#include <tuple>

namespace kvferry::ptx {
namespace {

constexpr std::uint64_t kNumPackSeeds = 40;
constexpr std::uint64_t kNumCoRunSeeds = 8;
constexpr int kFirstWithBulkCopies = 90;

bool has_bulk_kernels(const std::string& module) {
  const int architecture = module == "embedded" ? gpu::cuda_newest_architecture()
                                                : std::stoi(module.substr(module.find('_') + 1));
  return architecture >= kFirstWithBulkCopies;
}

TestedKernel pack_kernel(const std::string& module, const std::string& name,
                         const PackChoice& choice) {
  return {module, name, [=](std::uint64_t seed) { return make_pack_case(seed, choice); },
          [=] { return make_far_case(choice); }, kNumPackSeeds};
}

void add_vector_kernels(const std::string& module, std::vector<TestedKernel>& all) {
  using gpu::PackSums;
  using gpu::PackWay;
  constexpr auto kVector = gpu::PackKernel::kVector;
  for (const auto& [name, way, sums] :
       {std::tuple("kvferry_gather", PackWay::kGather, PackSums::kNo),
        std::tuple("kvferry_scatter", PackWay::kScatter, PackSums::kNo),
        std::tuple("kvferry_gather_tagged", PackWay::kGather, PackSums::kYes),
        std::tuple("kvferry_scatter_tagged", PackWay::kScatter, PackSums::kYes),
        std::tuple("kvferry_sum", PackWay::kSum, PackSums::kYes)}) {
    all.push_back(pack_kernel(module, name, {way, kVector, sums}));
  }
}

void add_bulk_kernels(const std::string& module, std::vector<TestedKernel>& all) {
  constexpr auto kBulk = gpu::PackKernel::kBulk;
  constexpr auto kNo = gpu::PackSums::kNo;
  all.push_back(pack_kernel(module, "kvferry_gather_bulk", {gpu::PackWay::kGather, kBulk, kNo}));
  all.push_back(pack_kernel(module, "kvferry_scatter_bulk", {gpu::PackWay::kScatter, kBulk, kNo}));
}

void add_co_run_kernels(const std::string& module, std::vector<TestedKernel>& all) {
  all.push_back({module, "kvferry_co_run_gemm", make_co_run_gemm_case, nullptr, kNumCoRunSeeds});
  all.push_back(
      {module, "kvferry_co_run_stream", make_co_run_stream_case, nullptr, kNumCoRunSeeds});
}

}  // namespace

std::vector<TestedKernel> tested_kernels() {
  std::vector<TestedKernel> all;
  for (const std::string& module : module_names()) {
    add_vector_kernels(module, all);
    if (has_bulk_kernels(module)) add_bulk_kernels(module, all);
    add_co_run_kernels(module, all);
  }
  return all;
}

std::vector<TestedKernel> tested_gcn_kernels() {
  std::vector<TestedKernel> all;
  for (const std::string& module : gcn_module_names()) {
    add_vector_kernels(module, all);
    add_co_run_kernels(module, all);
  }
  return all;
}

}  // namespace kvferry::ptx
