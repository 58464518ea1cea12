// SPDX-License-Identifier: Apache-2.0
#include "tested_kernels.hpp"

#include "co_run_case.hpp"
#include "gcn_modules.hpp"
#include "kernels/code_objects.hpp"
#include "modules.hpp"
#include "pack_case.hpp"

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

TestedKernel pack_kernel(const std::string& module, gpu::PackWay way, gpu::PackKernel kernel) {
  const std::string name = way == gpu::PackWay::kGather ? "kvferry_gather" : "kvferry_scatter";
  return {module, kernel == gpu::PackKernel::kBulk ? name + "_bulk" : name,
          [=](std::uint64_t seed) { return make_pack_case(seed, way, kernel); },
          [=] { return make_far_case(way, kernel); }, kNumPackSeeds};
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
    for (const gpu::PackWay way : {gpu::PackWay::kGather, gpu::PackWay::kScatter}) {
      all.push_back(pack_kernel(module, way, gpu::PackKernel::kVector));
      if (has_bulk_kernels(module)) all.push_back(pack_kernel(module, way, gpu::PackKernel::kBulk));
    }
    add_co_run_kernels(module, all);
  }
  return all;
}

std::vector<TestedKernel> tested_gcn_kernels() {
  std::vector<TestedKernel> all;
  for (const std::string& module : gcn_module_names()) {
    for (const gpu::PackWay way : {gpu::PackWay::kGather, gpu::PackWay::kScatter}) {
      all.push_back(pack_kernel(module, way, gpu::PackKernel::kVector));
    }
    add_co_run_kernels(module, all);
  }
  return all;
}

}  // namespace kvferry::ptx
