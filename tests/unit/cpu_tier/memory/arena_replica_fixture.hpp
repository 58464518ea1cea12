// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "made_up_machine.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <unistd.h>

/// Arenas of one replica group.
namespace kvferry::cpu_tier {

inline constexpr std::uint64_t kPage = 4096;
inline constexpr std::uint64_t kChunkBytes = 2 * kPage;
inline constexpr std::uint32_t kNumChunks = 30;

/// How a member makes its arena.
struct Member : ArenaOptions {
  ReplicaGroup replicas;
};

inline Member options_of(std::uint32_t index, std::uint32_t size, const MachineRoot& machine) {
  return {{.pinned_piece_bytes = 2 * size * kChunkBytes,
           .max_registration_bytes = 4 * size * kChunkBytes,
           .start = ArenaStart::kEmpty,
           .pages = PageKind::kNormal,
           .num_threads = 2,
           .machine = machine},
          {.name = "engine 1", .size = size, .index = index}};
}

inline std::span<std::uint8_t> bytes_of(const Arena& arena, std::uint32_t chunk) {
  return {reinterpret_cast<std::uint8_t*>(arena.chunk_address(ChunkId(chunk))), kChunkBytes};
}
inline void fill(const Arena& arena, std::uint32_t chunk, std::uint8_t value) {
  std::memset(bytes_of(arena, chunk).data(), value, kChunkBytes);
}
inline bool holds(const Arena& arena, std::uint32_t chunk, std::uint8_t value) {
  for (const std::uint8_t byte : bytes_of(arena, chunk)) {
    if (byte != value) return false;
  }
  return true;
}

/// Fails the test if it takes a minute.
inline void await(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "hangs";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Makes members of one group in this process.
class ArenaReplicaTest : public ::testing::Test {
 protected:
  ArenaReplicaTest() { machine_.write_available(std::uint64_t{1} << 20U); }
#ifdef KVFERRY_TEST_HOOKS
  ~ArenaReplicaTest() override { test_hooks::reset(); }
#endif

  [[nodiscard]] Member options(std::uint32_t index, std::uint32_t size = 2) const {
    return options_of(index, size, machine_.root);
  }
  [[nodiscard]] std::unique_ptr<Arena> arena(const Member& of,
                                             std::uint32_t num_chunks = kNumChunks) {
    return std::make_unique<Arena>(*device_, make_group_source(of.replicas), kChunkBytes,
                                   num_chunks, of);
  }
  [[nodiscard]] std::filesystem::path board() const {
    for (const auto& entry : std::filesystem::directory_iterator(machine_.root.claims)) {
      if (entry.path().filename().string().starts_with("kvferry-replicas-")) return entry.path();
    }
    return {};
  }
  /// Overwrites a word of the published board.
  void patch(off_t offset, std::int32_t value) const {
    const int file = ::open(board().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(file, 0);
    EXPECT_EQ(::pwrite(file, &value, sizeof value, offset), ssize_t{sizeof value});
    ::close(file);
  }

  MadeUpMachine machine_;
  std::unique_ptr<gpu::Device> device_ = gpu::make_host_device();
};

}  // namespace kvferry::cpu_tier
