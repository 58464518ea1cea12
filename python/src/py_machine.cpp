// SPDX-License-Identifier: Apache-2.0
#include "py_machine.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/cpu_tier/memory/machine_topology.hpp"
#include "kvferry/cpu_tier/memory/memlock_limit.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"
#include "kvferry/cpu_tier/memory/memory_claim.hpp"
#include "kvferry/cpu_tier/memory/pool_budget.hpp"
#include "kvferry/gpu/backend_table.hpp"
#include "kvferry/gpu/built_kernels.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace kvferry::python {
namespace {

namespace py = pybind11;

using Limits = std::vector<std::tuple<std::string, std::uint64_t, std::string>>;

Limits memory_limits() {
  Limits out;
  for (const cpu_tier::MemoryLimit& limit : cpu_tier::read_memory_limits()) {
    out.emplace_back(limit.name, limit.room_bytes, limit.remedy);
  }
  return out;
}

std::map<std::string, std::uint64_t> huge_page_pool() {
  const cpu_tier::HugePagePool pool = cpu_tier::huge_page_pool();
  return {{"page_bytes", pool.page_bytes},
          {"num_total", pool.num_total},
          {"num_free", pool.num_free},
          {"num_more", pool.num_more}};
}

std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>> numa_nodes() {
  std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>> out;
  const cpu_tier::MachineTopology topology;
  for (const cpu_tier::NumaNode& node : topology.nodes()) {
    out.emplace_back(node.number, node.memory_bytes, node.num_cpus);
  }
  return out;
}

std::tuple<std::string, std::vector<std::string>, std::vector<std::string>> built_kernels() {
  const gpu::BuiltKernels built = gpu::built_kernels();
  return {built.cuda_toolkit, built.cuda, built.hip};
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const gpu::BackendRow& row : gpu::backend_table()) names.emplace_back(row.name);
  return names;
}

std::map<std::string, std::string> backends() {
  std::map<std::string, std::string> out;
  for (const gpu::BackendRow& row : gpu::backend_table()) {
    out.emplace(row.name, row.availability({}).why_not);
  }
  return out;
}

std::vector<std::map<std::string, std::string>> find_devices(const std::string& backend,
                                                             const std::string& driver_library) {
  const gpu::BackendRow& row = gpu::backend_from(backend);
  if (row.find_devices == nullptr) {
    throw ConfigError("back end '" + backend + "' has no driver to ask; expected one of a GPU");
  }
  std::vector<std::map<std::string, std::string>> out;
  for (const gpu::FoundDevice& one : row.find_devices({.library = driver_library})) {
    out.push_back({{"name", one.name},
                   {"architecture", one.architecture},
                   {"driver", one.driver},
                   {"pci_address", one.pci_address.value_or("")},
                   {"kernels", one.kernels}});
  }
  return out;
}

/// Checks the budget like the first rank's arena, without claiming anything.
std::tuple<std::string, std::uint64_t, std::string> ask_for_tier(std::uint64_t rank_bytes,
                                                                 std::uint32_t num_ranks,
                                                                 const std::string& pages) {
  const auto wish = pages == "auto" ? std::nullopt : std::optional(cpu_tier::page_kind_from(pages));
  const cpu_tier::PageKind kind = cpu_tier::choose_pages(rank_bytes, wish);
  const auto claim =
      cpu_tier::MemoryClaim::imagined(rank_bytes, kind, {"kvferry doctor", num_ranks});
  return {cpu_tier::to_string(kind), cpu_tier::room_bytes(claim.limits()),
          claim.shortage().value_or("")};
}

}  // namespace

void bind_machine(py::module_& module) {
  module.def("built_kernels", &built_kernels,
             "The toolkit and the architectures of this build's GPU kernels: (CUDA toolkit, such "
             "as '13.0', or empty; NVIDIA architectures, such as 'sm_80'; AMD architectures, such "
             "as 'gfx90a').");
  module.def("backend_names", &backend_names,
             "The back ends, by the users' names for them, the host first.");
  module.def("backends", &backends,
             "For each back end, why it is not available in this process, in one line; empty if it "
             "is. Starts the vendors' drivers, which can hang.");
  module.def(
      "find_devices", &find_devices, py::arg("backend"), py::arg("driver_library") = "",
      py::call_guard<py::gil_scoped_release>(),
      "The devices of a GPU back end, in the order of their ordinals, as their driver describes "
      "them: name, architecture, driver, pci_address ('' if unknown), and kernels: those of this "
      "build that fit it ('sm_90', 'PTX of sm_100', 'hipRTC', '' if none). Makes no context, but "
      "starts the driver, which can hang. Raises DeviceError or ConfigError.");
  module.def("memory_limits", &memory_limits,
             "The limits on more host memory for this process: (name, bytes that it still allows, "
             "how to raise it).");
  module.def("memlock_limit_bytes", &cpu_tier::memlock_limit_bytes,
             "Bytes that this process can lock; None: unlimited.");
  module.def(
      "memlock_warning", [](std::uint64_t bytes) { return cpu_tier::memlock_warning(bytes); },
      py::arg("bytes"),
      "A warning for the user before `bytes` are registered with a GPU; None: there is none.");
  module.def("huge_page_pool", &huge_page_pool,
             "The machine's pool of huge pages: page_bytes, num_total, num_free, and num_more, "
             "which the kernel can add.");
  module.def("numa_nodes", &numa_nodes,
             "The NUMA nodes that this process can use: (number, bytes of memory, processors). "
             "Raises ResourceError.");
  module.def(
      "check_numa_node", [](std::uint32_t node) { cpu_tier::MachineTopology().check_node(node); },
      py::arg("node"),
      "Raises a ConfigError that lists the machine's nodes, unless `node` is one of them.");
  module.def(
      "ask_for_tier", &ask_for_tier, py::arg("rank_bytes"), py::arg("num_ranks"), py::arg("pages"),
      "Checks whether `num_ranks` ranks could start now, each with a tier of `rank_bytes` > 0 in "
      "`pages` ('auto': the best kind). Returns (kind of pages, bytes of room for all ranks, why "
      "the first rank would refuse; empty if it would not). Takes no memory. Raises ConfigError.");
}

}  // namespace kvferry::python
