// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/test_hooks.hpp"

#include "client_rig.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace kvferry::lmcache {

/// Stores that share a file, which is gone behind the test.
class SharedStoreFixture : public testing::Test {
 protected:
  SharedStoreFixture() { std::filesystem::remove(path_); }
  ~SharedStoreFixture() override {
#ifdef KVFERRY_TEST_HOOKS
    test_hooks::reset();
#endif
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

inline std::ptrdiff_t num_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
#if defined(__SANITIZE_THREAD__)
  return std::distance(begin(tasks), end(tasks)) - 1;  // TSan may have one of its own
#else
  return std::distance(begin(tasks), end(tasks));
#endif
}

/// Another process, which waits for begin() and is killed at the latest with this object. One with
/// a life is made while this process has one thread: a lock that another thread holds at the fork,
/// ASan's allocator's above all, would be held in the child for ever.
class Child {
 public:
  explicit Child(const std::function<void()>& life = {}) : process_(fork_for(life)) {
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::raise(SIGSTOP);
      life();
      ::_exit(0);
    }
    EXPECT_TRUE(stops());
  }
  ~Child() { kill_it(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void begin() const { ::kill(process_, SIGCONT); }
  /// Whether it stops itself, and stays.
  [[nodiscard]] bool stops() { return await() && WIFSTOPPED(status_); }
  /// Whether it is killed by itself.
  [[nodiscard]] bool dies() { return await() && is_killed(); }
  /// Whether it lived until then.
  bool kill_it() {
    if (is_gone_) return false;
    ::kill(process_, SIGKILL);
    return await() && is_killed();
  }

 private:
  static pid_t fork_for(const std::function<void()>& life) {
    // A thread that was joined is listed a little longer.
    if (life && !eventually([] { return num_threads() <= 1; })) {
      throw std::logic_error(
          "a child is to be forked beside other threads, maybe oneTBB's of a test before: run this "
          "one by itself, as ctest does");
    }
    const pid_t process = ::fork();
    if (process < 0) throw std::system_error(errno, std::generic_category(), "fork");
    return process;
  }
  bool await() {
    const bool has_changed =
        eventually([&] { return ::waitpid(process_, &status_, WUNTRACED | WNOHANG) == process_; });
    is_gone_ = has_changed && !WIFSTOPPED(status_);
    return has_changed;
  }
  [[nodiscard]] bool is_killed() const {
    return WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL;
  }

  const pid_t process_;
  int status_ = 0;
  bool is_gone_ = false;
};

}  // namespace kvferry::lmcache
