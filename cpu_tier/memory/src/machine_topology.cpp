// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/machine_topology.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <hwloc.h>
#include <string_view>
#include <system_error>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

/// Number of pages of an area that are sampled. A share is exact to a few percent, and a look at
/// every page of a large arena would take seconds.
constexpr std::size_t kSampledPages = 256;

class Bitmap {
 public:
  Bitmap() : bitmap_(::hwloc_bitmap_alloc()) {}
  ~Bitmap() { ::hwloc_bitmap_free(bitmap_); }
  Bitmap(const Bitmap&) = delete;
  Bitmap& operator=(const Bitmap&) = delete;
  [[nodiscard]] hwloc_bitmap_t get() const { return bitmap_; }

 private:
  hwloc_bitmap_t bitmap_;
};

}  // namespace

struct MachineTopology::Hwloc {
  enum class Devices : bool { kLeftOut, kIncluded };

  /// Reads this machine, or the file if one is named. Throws std::system_error.
  explicit Hwloc(Devices devices, const std::filesystem::path* xml = nullptr) {
    if (::hwloc_topology_init(&topology) != 0) throw last_error();
    try {
      if (xml != nullptr && ::hwloc_topology_set_xml(topology, xml->c_str()) != 0) {
        throw last_error();
      }
      // Devices are attached to packages and groups. All kinds of PCI devices are included, because
      // not every accelerator calls itself a display.
      ::hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
      ::hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL);
      if (devices == Devices::kLeftOut) {
        ::hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
      }
      if (::hwloc_topology_load(topology) != 0) throw last_error();
    } catch (...) {
      ::hwloc_topology_destroy(topology);
      throw;
    }
  }
  ~Hwloc() { ::hwloc_topology_destroy(topology); }
  Hwloc(const Hwloc&) = delete;
  Hwloc& operator=(const Hwloc&) = delete;

  /// Devices are read only on machines with several nodes, where their place matters. Reading the
  /// configuration of each device takes most of the time on a virtual machine.
  static std::unique_ptr<Hwloc> of_this_machine() {
    auto without = std::make_unique<Hwloc>(Devices::kLeftOut);
    if (::hwloc_get_nbobjs_by_type(without->topology, HWLOC_OBJ_NUMANODE) == 1) return without;
    return std::make_unique<Hwloc>(Devices::kIncluded);
  }

  static std::system_error last_error() {
    return {errno == 0 ? EINVAL : errno, std::generic_category()};
  }

  [[nodiscard]] static bool is_of_host(hwloc_obj_t node) {
    return node->subtype == nullptr || std::string_view(node->subtype) != "GPUMemory";
  }

  /// The only node of the host in `nodeset`, if the machine has other nodes.
  [[nodiscard]] std::optional<std::uint32_t> only_node_in(hwloc_const_nodeset_t nodeset) const {
    std::optional<std::uint32_t> found;
    bool has_others = false;
    hwloc_obj_t node = nullptr;
    while ((node = ::hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
      if (!is_of_host(node)) continue;
      if (::hwloc_bitmap_isset(nodeset, node->os_index) == 0) {
        has_others = true;
        continue;
      }
      if (found) return std::nullopt;
      found = node->os_index;
    }
    return has_others ? found : std::nullopt;
  }

  hwloc_topology_t topology = nullptr;
};

MachineTopology::MachineTopology(std::unique_ptr<Hwloc> hwloc) : hwloc_(std::move(hwloc)) {
  hwloc_obj_t node = nullptr;
  while ((node = ::hwloc_get_next_obj_by_type(hwloc_->topology, HWLOC_OBJ_NUMANODE, node)) !=
         nullptr) {
    if (!Hwloc::is_of_host(node)) continue;
    nodes_.push_back({node->os_index, node->attr->numanode.local_memory,
                      static_cast<std::uint32_t>(::hwloc_bitmap_weight(node->cpuset))});
  }
  std::sort(nodes_.begin(), nodes_.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.number < b.number; });
}

MachineTopology::MachineTopology() try : MachineTopology(Hwloc::of_this_machine()) {
} catch (const std::system_error& error) {
  throw ResourceError(std::string("hwloc cannot read this machine's topology: ") + error.what() +
                      "; lstopo shows more");
}

MachineTopology::MachineTopology(const std::filesystem::path& xml) try
    : MachineTopology(std::make_unique<Hwloc>(Hwloc::Devices::kIncluded, &xml)) {
} catch (const std::system_error& error) {
  throw ConfigError("'" + xml.string() + "' is not a topology that hwloc can read: " +
                    error.what() + "; lstopo FILE.xml writes one");
}

MachineTopology::~MachineTopology() = default;

std::optional<std::uint32_t> MachineTopology::node_of_device(const std::string& pci_address) const {
  hwloc_obj_t device = ::hwloc_get_pcidev_by_busidstring(hwloc_->topology, pci_address.c_str());
  if (device == nullptr) return std::nullopt;
  return hwloc_->only_node_in(::hwloc_get_non_io_ancestor_obj(hwloc_->topology, device)->nodeset);
}

std::optional<std::uint32_t> MachineTopology::node_of_this_thread() const {
  const Bitmap cpus;
  const Bitmap nodes;
  if (::hwloc_get_cpubind(hwloc_->topology, cpus.get(), HWLOC_CPUBIND_THREAD) != 0) {
    return std::nullopt;
  }
  ::hwloc_cpuset_to_nodeset(hwloc_->topology, cpus.get(), nodes.get());
  return hwloc_->only_node_in(nodes.get());
}

void MachineTopology::check_node(std::uint32_t node) const {
  std::string known;
  for (const NumaNode& one : nodes_) {
    if (one.number == node) return;
    known += (known.empty() ? "" : ", ") + std::to_string(one.number);
  }
  throw ConfigError("this machine has no NUMA node " + std::to_string(node) +
                    " that this process may use; it has " + known);
}

bool MachineTopology::bind_this_thread(std::uint32_t node) const {
  hwloc_obj_t const object = ::hwloc_get_numanode_obj_by_os_index(hwloc_->topology, node);
  if (object == nullptr || ::hwloc_bitmap_iszero(object->cpuset) != 0) return false;
  return ::hwloc_set_cpubind(hwloc_->topology, object->cpuset, HWLOC_CPUBIND_THREAD) == 0;
}

bool MachineTopology::prefer(std::span<std::byte> memory, std::uint32_t node) const {
  const Bitmap nodes;
  ::hwloc_bitmap_only(nodes.get(), node);
  // Without HWLOC_MEMBIND_STRICT, "bind" means the kernel's "preferred".
  return ::hwloc_set_area_membind(hwloc_->topology, memory.data(), memory.size(), nodes.get(),
                                  HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) == 0;
}

std::optional<double> MachineTopology::share_on(std::span<std::byte> memory,
                                                std::uint32_t node) const {
  const Bitmap nodes;
  const std::size_t num_samples = std::min(kSampledPages, memory.size());
  std::size_t num_known = 0;
  std::size_t num_there = 0;
  for (std::size_t i = 0; i < num_samples; ++i) {
    if (::hwloc_get_area_memlocation(hwloc_->topology,
                                     memory.data() + memory.size() / num_samples * i, 1,
                                     nodes.get(), HWLOC_MEMBIND_BYNODESET) != 0) {
      return std::nullopt;
    }
    // A page that is not yet touched, or that the kernel's compaction is moving, is on no node.
    if (::hwloc_bitmap_iszero(nodes.get()) != 0) continue;
    ++num_known;
    if (::hwloc_bitmap_isset(nodes.get(), node) != 0) ++num_there;
  }
  if (num_known == 0) return std::nullopt;
  return static_cast<double>(num_there) / static_cast<double>(num_known);
}

}  // namespace kvferry::cpu_tier
