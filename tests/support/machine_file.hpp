// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

/// Machines that are not here, as hwloc writes them.
namespace kvferry::cpu_tier {

/// A package with two processors, its NUMA node and what hangs on it, as hwloc writes it.
struct Package {
  int number = 0;
  std::string inside;
};

inline std::string hex(unsigned bits) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08x", bits);
  return text;
}

inline std::string sets(unsigned cpus, unsigned nodes) {
  std::string text;
  for (const char* complete : {"", "complete_"}) {
    text += std::string(" ") + complete + "cpuset=\"" + hex(cpus) + "\" " + complete +
            "nodeset=\"" + hex(nodes) + "\"";
  }
  return text;
}

/// The device at a PCI address, behind a bridge.
inline std::string bridge_to(const std::string& device, int bus) {
  char range[32];
  std::snprintf(range, sizeof(range), "0000:[%02x-%02x]", bus, bus);
  return R"(<object type="Bridge" bridge_type="0-1" depth="0" bridge_pci=")" + std::string(range) +
         R"("><object type="PCIDev" pci_busid=")" + device +
         R"(" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.0"/></object>)";
}

/// `num_nodes` with processors and, behind the last, `num_gpu_nodes` of a GPU's memory.
inline std::string machine(const std::vector<Package>& packages, const std::string& on_root = "",
                           unsigned num_gpu_nodes = 0) {
  const auto count = static_cast<unsigned>(packages.size());
  const unsigned all_cpus = (1U << (2 * count)) - 1;
  const unsigned all_nodes = (1U << (count + num_gpu_nodes)) - 1;
  std::string text =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
      "<topology version=\"2.0\">\n"
      R"(<object type="Machine" os_index="0" allowed_cpuset=")" +
      hex(all_cpus) + "\" allowed_nodeset=\"" + hex(all_nodes) + '"' + sets(all_cpus, all_nodes) +
      ">";
  for (unsigned i = 0; i < count; ++i) {
    const unsigned cpus = 3U << (2 * i);
    const bool has_gpu_node = num_gpu_nodes > 0 && i == 0;
    const unsigned own_nodes = (1U << i) | (has_gpu_node ? 1U << count : 0);
    const std::string index = std::to_string(i);
    text += R"(<object type="Package" os_index=")" + index + '"' + sets(cpus, own_nodes) + ">" +
            R"(<object type="NUMANode" os_index=")" + index + '"' + sets(cpus, 1U << i) +
            R"( local_memory="1073741824"/>)";
    if (has_gpu_node) {
      text += R"(<object type="NUMANode" subtype="GPUMemory" os_index=")" + std::to_string(count) +
              '"' + sets(cpus, 1U << count) + R"( local_memory="1073741824"/>)";
    }
    for (unsigned cpu = 2 * i; cpu < 2 * i + 2; ++cpu) {
      text += R"(<object type="PU" os_index=")" + std::to_string(cpu) + '"' +
              sets(1U << cpu, own_nodes) + "/>";
    }
    text += packages[i].inside + "</object>";
  }
  return text + on_root + "</object></topology>";
}

/// A file for a description.
class MachineFile : public ::testing::Test {
 protected:
  MachineFile() {
    if (const int made = ::mkstemp(name_.data()); made >= 0) ::close(made);
  }
  ~MachineFile() override { std::filesystem::remove(name_); }

  const std::filesystem::path& write(const std::string& text) {
    std::ofstream(name_) << text;
    file_ = name_;
    return file_;
  }

 private:
  std::string name_ = ::testing::TempDir() + "kvferry_topology_XXXXXX";
  std::filesystem::path file_;
};

}  // namespace kvferry::cpu_tier
