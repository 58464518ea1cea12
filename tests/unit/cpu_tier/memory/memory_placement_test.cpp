// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/memory_placement.hpp"

#include "kvferry/base/error.hpp"

#include "machine_file.hpp"

#include <gtest/gtest.h>

namespace kvferry::cpu_tier {
namespace {

constexpr const char* kPlacedGpu = "0000:41:00.0";

class MemoryPlacementTest : public MachineFile {
 protected:
  MemoryPlacement choose(const std::vector<Package>& packages, std::optional<std::uint32_t> wanted,
                         const std::optional<std::string>& device) {
    return choose_memory_placement(std::make_shared<MachineTopology>(write(machine(packages))),
                                   wanted, device);
  }

  const std::vector<Package> gpu_on_second_ = {{0, ""}, {1, bridge_to(kPlacedGpu, 0x41)}};
};

TEST_F(MemoryPlacementTest, NextToTheDevice) {
  const MemoryPlacement placement = choose(gpu_on_second_, std::nullopt, kPlacedGpu);
  EXPECT_EQ(placement.node, 1U);
  EXPECT_NE(placement.reason.find(kPlacedGpu), std::string::npos);
}

TEST_F(MemoryPlacementTest, TheUsersChoiceOverridesTheDevices) {
  EXPECT_EQ(choose(gpu_on_second_, 0, kPlacedGpu).node, 0U);
  EXPECT_THROW(choose(gpu_on_second_, 2, kPlacedGpu), ConfigError);
}

TEST_F(MemoryPlacementTest, ADeviceOfUnknownPlaceLeavesItToTheKernelAndSaysSo) {
  const MemoryPlacement placement = choose(gpu_on_second_, std::nullopt, "0000:99:00.0");
  EXPECT_EQ(placement.node, std::nullopt);
  EXPECT_NE(placement.reason.find("set numa_node"), std::string::npos) << placement.reason;
}

TEST_F(MemoryPlacementTest, OneNodeIsNothingToChoose) {
  EXPECT_EQ(choose({{0, bridge_to(kPlacedGpu, 0x41)}}, std::nullopt, kPlacedGpu).node,
            std::nullopt);
  EXPECT_EQ(choose({{0, ""}}, std::nullopt, std::nullopt).node, std::nullopt);
}

TEST_F(MemoryPlacementTest, WhatComputesOnProcessorsGetsTheNodeThatItIsBoundTo) {
  const auto topology = std::make_shared<const MachineTopology>();
  const MemoryPlacement placement = choose_memory_placement(topology, std::nullopt, std::nullopt);
  EXPECT_EQ(placement.node, topology->node_of_this_thread());
}

}  // namespace
}  // namespace kvferry::cpu_tier
