// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/machine_topology.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/host_mapping.hpp"

#include "machine_file.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <string>
#include <thread>

namespace kvferry::cpu_tier {
namespace {

constexpr const char* kGpu = "0000:41:00.0";

class MachineTopologyFile : public MachineFile {};

TEST_F(MachineTopologyFile, TwoSocketsWithTheGpuOnTheSecond) {
  const MachineTopology topology(write(machine({{0, ""}, {1, bridge_to(kGpu, 0x41)}})));
  ASSERT_EQ(topology.nodes().size(), 2U);
  EXPECT_EQ(topology.nodes()[1].number, 1U);
  EXPECT_EQ(topology.nodes()[1].num_cpus, 2U);
  EXPECT_EQ(topology.nodes()[1].memory_bytes, std::uint64_t{1} << 30);
  EXPECT_EQ(topology.node_of_device(kGpu), 1U);
  EXPECT_EQ(topology.node_of_device("0000:42:00.0"), std::nullopt);
  EXPECT_EQ(topology.node_of_device("no address"), std::nullopt);
  EXPECT_EQ(topology.node_of_device(""), std::nullopt);
}

TEST_F(MachineTopologyFile, AMachineWithoutNumaHasNothingToPrefer) {
  const MachineTopology topology(write(machine({{0, bridge_to(kGpu, 0x41)}})));
  EXPECT_EQ(topology.nodes().size(), 1U);
  EXPECT_EQ(topology.node_of_device(kGpu), std::nullopt);
}

// As many virtual machines show it: the device hangs on the whole machine.
TEST_F(MachineTopologyFile, ADeviceOfUnknownPlaceHasNoNode) {
  const MachineTopology topology(write(machine({{0, ""}, {1, ""}}, bridge_to(kGpu, 0x41))));
  EXPECT_EQ(topology.nodes().size(), 2U);
  EXPECT_EQ(topology.node_of_device(kGpu), std::nullopt);
}

// GH200: the memory of the GPU is a NUMA node of its processor's package.
TEST_F(MachineTopologyFile, MemoryOfAGpuIsNoPlaceForTheTier) {
  const MachineTopology topology(
      write(machine({{0, bridge_to(kGpu, 0x41)}, {1, ""}}, "", /*num_gpu_nodes=*/1)));
  EXPECT_EQ(topology.nodes().size(), 2U);
  EXPECT_EQ(topology.node_of_device(kGpu), 0U);
}

TEST_F(MachineTopologyFile, AnUnknownNodeIsRefusedWithTheListOfThoseThereAre) {
  const MachineTopology topology(write(machine({{0, ""}, {1, ""}})));
  EXPECT_NO_THROW(topology.check_node(1));
  try {
    topology.check_node(7);
    FAIL() << "node 7 was taken";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "this machine has no NUMA node 7 that this process may use; it has 0, 1");
  }
}

TEST_F(MachineTopologyFile, AFileThatIsNoTopologyIsNamed) {
  for (const std::string text : {"", "<topology", "nonsense"}) {
    try {
      const MachineTopology topology(write(text));
      FAIL() << "'" << text << "' was read";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("kvferry_topology_"), std::string::npos);
    }
  }
}

TEST(MachineTopology, ThisMachineHasANodeAndPutsMemoryThere) {
  const MachineTopology topology;
  ASSERT_FALSE(topology.nodes().empty());
  for (const NumaNode& node : topology.nodes()) {
    if (node.num_cpus == 0) continue;
    HostMapping mapping(std::uint64_t{1} << 20);
    const std::span<std::byte> memory = mapping.bytes();
    if (!topology.prefer(memory, node.number)) GTEST_SKIP() << "the kernel refuses";
    mapping.populate();
    EXPECT_EQ(topology.share_on(memory, node.number).value_or(1.0), 1.0);
    for (const NumaNode& other : topology.nodes()) {
      if (other.number == node.number) continue;
      EXPECT_EQ(topology.share_on(memory, other.number).value_or(0.0), 0.0);
    }
  }
}

TEST(MachineTopology, PagesThatAreOnNoNodeCountForNothing) {
  const MachineTopology topology;
  const HostMapping mapping(std::uint64_t{64} << 20, PageKind::kNormal);
  const std::uint32_t node = topology.nodes().front().number;
  EXPECT_EQ(topology.share_on(mapping.bytes(), node), std::nullopt);

  const auto half = mapping.bytes().first(mapping.size_bytes() / 2);
  mapping.populate(half);
  const std::optional<double> share = topology.share_on(half, node);
  if (!share) GTEST_SKIP() << "the kernel does not tell";
  // The sampled pages of the half and of the whole are not the same: on several nodes the shares
  // may differ by what one page in 256 is.
  EXPECT_NEAR(topology.share_on(mapping.bytes(), node).value_or(-1.0), *share, 0.01);
}

TEST(MachineTopology, AThreadBoundToANodeIsFoundThere) {
  const MachineTopology topology;
  for (const NumaNode& node : topology.nodes()) {
    std::optional<std::uint32_t> found;
    bool bound = false;
    std::thread([&] {
      bound = topology.bind_this_thread(node.number);
      found = topology.node_of_this_thread();
    }).join();
    EXPECT_EQ(bound, node.num_cpus > 0);
    if (!bound) continue;
    // Of the only node nobody says that a thread is near to it.
    EXPECT_EQ(found, topology.nodes().size() > 1 ? std::optional(node.number) : std::nullopt);
  }
  EXPECT_FALSE(topology.bind_this_thread(4000));
}

}  // namespace
}  // namespace kvferry::cpu_tier
