// SPDX-License-Identifier: Apache-2.0
#include "measure/numa.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/host_mapping.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvferry::bench {
namespace {

using Nodes = std::vector<std::uint32_t>;

TEST(Numa, ListsAreThoseOfTheKernel) {
  EXPECT_EQ(node_list_from("0"), Nodes{0});
  EXPECT_EQ(node_list_from("0-3"), (Nodes{0, 1, 2, 3}));
  EXPECT_EQ(node_list_from("0-1,4,8-9"), (Nodes{0, 1, 4, 8, 9}));
  for (const char* text : {"", "a", "1,", "-1", "1-", "0 1", "5000"}) {
    EXPECT_THROW(static_cast<void>(node_list_from(text)), ConfigError) << text;
  }
}

TEST(Numa, MemoryIsWhereItWasWanted) {
  const Nodes nodes = memory_nodes();
  ASSERT_FALSE(nodes.empty());
  EXPECT_TRUE(std::is_sorted(nodes.begin(), nodes.end()));
  if (nodes.size() == 1) GTEST_SKIP() << "one node: there is nothing to choose";
  for (const std::uint32_t node : nodes) {
    cpu_tier::HostMapping mapping(std::uint64_t{1} << 20U);
    const std::span<std::byte> memory(reinterpret_cast<std::byte*>(mapping.address()),
                                      mapping.size_bytes());
    try {
      prefer_node(memory, node);
    } catch (const ResourceError& error) {
      GTEST_SKIP() << error.what();
    }
    mapping.populate();
    check_node(memory, node);
    for (const std::uint32_t other : nodes) {
      if (other == node) continue;
      EXPECT_THROW(check_node(memory, other), ResourceError);
    }
  }
}

}  // namespace
}  // namespace kvferry::bench
