// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/test_hooks.hpp"

#include "client_rig.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace kvferry::lmcache {

/// Stores that share a file, which is gone behind the test.
class SharedStoreFixture : public testing::Test {
 protected:
  SharedStoreFixture() { std::filesystem::remove(path_); }
  ~SharedStoreFixture() override {
    test_hooks::reset();
    std::filesystem::remove(path_);
  }

  /// By default 15 chunks of a MiB each, and what a process that ended was writing is free at once.
  [[nodiscard]] MemoryOptions options(std::uint64_t capacity_bytes = 16 * kMiB) const {
    return {.capacity_bytes = capacity_bytes,
            .shared = SharedMemoryOptions{.path = path_, .grace = std::chrono::nanoseconds(0)}};
  }
  [[nodiscard]] static std::unique_ptr<ObjectStore> open(const MemoryOptions& of,
                                                         DigestFunction digest = &digest_of) {
    return std::make_unique<ObjectStore>(make_memory(of), cpu_tier::Eviction::kLru, digest);
  }
  [[nodiscard]] std::unique_ptr<ObjectStore> open(DigestFunction digest = &digest_of) const {
    return open(options(), digest);
  }

  const std::filesystem::path path_ = "/dev/shm/kvferry-store-test-" + std::to_string(::getpid());
};

/// What another thread or process will bring about.
inline bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kHang;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// A child starts threads, which TSan does not support where its parent had some. What a death
/// leaves is no race; the other builds run these tests.
constexpr bool kCanForkWithThreads =
#if defined(__SANITIZE_THREAD__)
    false;
#else
    true;
#endif

/// Runs `life` in a child, which is killed by `kill_it` or by itself.
inline void in_child(const std::function<void()>& life,
                     const std::function<void(pid_t)>& kill_it = {}) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    life();
    ::_exit(0);
  }
  if (kill_it) kill_it(child);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

}  // namespace kvferry::lmcache
