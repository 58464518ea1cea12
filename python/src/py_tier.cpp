// SPDX-License-Identifier: Apache-2.0
#include "py_tier.hpp"

#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/peers/shared_tier.hpp"
#include "kvferry/cpu_tier/peers/tier_report.hpp"
#include "kvferry/cpu_tier/policy/eviction_table.hpp"

#include "py_text.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvferry::python {
namespace {

namespace py = pybind11;

using Texts = std::map<std::string, py::str>;
using Figures = std::map<std::string, std::uint64_t>;
/// Name, name space, whether it is alive, chunks, weight.
using Instance = std::tuple<py::str, std::uint64_t, bool, std::uint32_t, std::uint32_t>;

cpu_tier::TierReport report_of(const std::string& path) {
  const py::gil_scoped_release unlocked;
  return cpu_tier::inspect_tier(path);
}

std::tuple<Texts, Figures, std::vector<Instance>> inspect(const py::bytes& path) {
  const cpu_tier::TierReport report = report_of(path);
  const cpu_tier::SharedSlotCounts& slots = report.slots;
  std::vector<Instance> instances;
  for (const cpu_tier::InstanceReport& each : report.instances) {
    instances.emplace_back(readable(each.name), each.name_space, each.is_alive, each.num_chunks,
                           each.weight);
  }
  Texts texts{{"made_by", readable(report.made_by)}};
  Figures figures{{"num_ranks", report.shape.num_ranks},
                  {"num_chunks", report.shape.num_chunks},
                  {"chunk_bytes", report.shape.chunk_bytes},
                  {"max_chunk_slots", report.shape.max_chunk_slots},
                  {"capacity_bytes", report.capacity_bytes},
                  {"reserved_bytes", report.reserved_bytes},
                  {"is_of_this_boot", report.is_of_this_boot ? 1 : 0},
                  {"num_empty_chunks", report.num_empty_chunks},
                  {"num_orphan_chunks", report.num_orphan_chunks},
                  {"slots/free", slots.num_free},
                  {"slots/filling", slots.num_filling},
                  {"slots/readable", slots.num_readable},
                  {"slots/dying", slots.num_dying},
                  {"slots/quarantined", slots.num_quarantined},
                  {"slots/withdrawn", slots.num_withdrawn},
                  {"slots/leased", slots.num_leased},
                  {"slots/damaged", slots.num_damaged}};
  return {std::move(texts), std::move(figures), std::move(instances)};
}

/// The paths are bytes, because a name need not be UTF-8.
std::vector<py::bytes> find(const py::bytes& directory) {
  std::vector<py::bytes> out;
  for (const auto& path : cpu_tier::find_tiers(std::string(directory)))
    out.emplace_back(path.string());
  return out;
}

std::tuple<std::uint32_t, std::uint64_t, std::uint32_t> shape(const std::string& path,
                                                              std::uint64_t capacity_bytes,
                                                              std::uint32_t num_ranks,
                                                              std::uint64_t chunk_bytes) {
  const cpu_tier::TierShape of = cpu_tier::shape_for({.path = path,
                                                      .capacity_bytes = capacity_bytes,
                                                      .num_ranks = num_ranks,
                                                      .chunk_bytes = chunk_bytes});
  return {of.num_chunks, of.chunk_bytes, of.max_chunk_slots};
}

std::pair<std::uint64_t, std::uint64_t> check(const std::string& path, std::uint64_t capacity_bytes,
                                              std::uint32_t num_ranks, std::uint64_t chunk_bytes) {
  const std::uint64_t missing = cpu_tier::SharedTier::check({.path = path,
                                                             .capacity_bytes = capacity_bytes,
                                                             .num_ranks = num_ranks,
                                                             .chunk_bytes = chunk_bytes});
  return {missing, cpu_tier::SharedFile::page_bytes_at(path)};
}

std::vector<std::string> eviction_names() {
  std::vector<std::string> names;
  for (const cpu_tier::EvictionRow& row : cpu_tier::kEvictions) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> admission_names() {
  return {cpu_tier::kAdmissionNames.begin(), cpu_tier::kAdmissionNames.end()};
}

}  // namespace

void bind_tier(py::module_& module) {
  module.def("eviction_names", &eviction_names,
             "The eviction policies, by the users' names for them, the default first.");
  module.def("admission_names", &admission_names,
             "The admission policies, by the users' names for them, the default first.");
  module.def(
      "slab_geometry",
      [](std::uint64_t tier_bytes, const std::vector<std::uint64_t>& slot_bytes) {
        const cpu_tier::SlabGeometry geometry = cpu_tier::slab_geometry(tier_bytes, slot_bytes);
        return std::pair(geometry.num_chunks, geometry.slots_per_chunk);
      },
      py::arg("tier_bytes"), py::arg("slot_bytes"),
      "How a tier of `tier_bytes` is divided for blocks of `slot_bytes` bytes, by slab class: "
      "(chunks, slots of each class in a chunk). Raises ConfigError.");
  module.def(
      "shared_tier_shape", &shape, py::arg("path"), py::arg("capacity_bytes"), py::arg("num_ranks"),
      py::arg("chunk_bytes") = 0,
      "How a shared tier of `capacity_bytes`, for all `num_ranks` ranks of an engine, is divided: "
      "(chunks, bytes of a chunk on one rank, most slots of a chunk). `chunk_bytes`: 0 for a size "
      "that depends only on the capacity. Makes nothing. Raises ConfigError.");
  module.def("check_shared_tier", &check, py::arg("path"), py::arg("capacity_bytes"),
             py::arg("num_ranks"), py::arg("chunk_bytes") = 0,
             "Checks whether an engine would accept that path for its shared tier, as far as that "
             "is possible without making anything. Returns the bytes that the file still lacks, "
             "for all ranks, and the bytes of one of its pages. Raises ConfigError or "
             "ResourceError, as the engine would.");
  module.def("find_tiers", &find, py::arg("directory"),
             "Paths of the shared tiers directly in that directory that this user can open. All "
             "paths are bytes.");
  module.def("inspect_tier", &inspect, py::arg("path"),
             "Describes the current contents of a shared tier, without joining it (`path`: bytes): "
             "(texts, figures, instances as (name, name space, whether it is alive, chunks, "
             "weight)). Raises ConfigError or ResourceError.");
  module.def(
      "remove_tier",
      [](const py::bytes& path) {
        const std::string its = path;
        const py::gil_scoped_release unlocked;
        cpu_tier::remove_tier(its);
      },
      py::arg("path"),
      "Removes the file of a shared tier. Raises ConfigError, or a ResourceError that names the "
      "engines that use it.");
}

}  // namespace kvferry::python
