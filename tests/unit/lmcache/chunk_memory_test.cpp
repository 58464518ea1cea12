// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/chunk_memory.hpp"

#include "kvferry/base/error.hpp"

#include "store_rig.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

namespace kvferry::lmcache {
namespace {

TEST(ChunkMemory, ServesAtOnceAndIsReadyAsAWholeLater) {
  auto memory = make_memory({.capacity_bytes = 64 * kMiB});
  ChunkMemory& chunks = *memory;
  EXPECT_GE(chunks.num_ready(), 1U);
  EXPECT_NE(chunks.description().find("pages"), std::string::npos) << chunks.description();
  ObjectStore store(std::move(memory), cpu_tier::Eviction::kAdaptive);
  EXPECT_EQ(put(store, {{"a", kMiB}}), 1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (chunks.num_ready() < chunks.geometry().num_chunks &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(chunks.num_ready(), chunks.geometry().num_chunks);
  EXPECT_EQ(chunks.warning(), "");
  for (int i = 0; i < 40; ++i) EXPECT_EQ(put(store, {{"v" + std::to_string(i), kMiB}}), 1);
  EXPECT_EQ(get(store, {"a", kMiB}), Got::kRight);
  EXPECT_EQ(get(store, {"v39", kMiB}), Got::kRight);
  store.check_invariants();
}

TEST(ChunkMemory, RefusesWhatTheMachineDoesNotHave) {
  const MemoryOptions all{.capacity_bytes = std::uint64_t{1} << 49U};
  EXPECT_THROW(static_cast<void>(make_memory(all)), ResourceError);
  const MemoryOptions far{.capacity_bytes = 64 * kMiB, .numa_node = 1000};
  EXPECT_THROW(static_cast<void>(make_memory(far)), ConfigError);
}

}  // namespace
}  // namespace kvferry::lmcache
