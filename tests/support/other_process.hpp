// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>

/// Forked processes of a test, of which no other thread may be at work.
namespace kvferry {

/// Does the work in a process of its own, which ends with its result unless a signal is faster.
/// Returns the status that waitpid() tells.
inline int in_a_process(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

/// Does the work in a process of its own, which is killed then.
inline void in_a_process_that_is_killed(const std::function<void()>& work) {
  const int status = in_a_process([&] {
    work();
    ::raise(SIGKILL);
    return 0;
  });
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

/// One that has something until it is killed.
class OtherProcess {
 public:
  /// Returns when `life` has called stay().
  explicit OtherProcess(const std::function<void()>& life) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    process_ = ::fork();
    if (process_ == 0) {
      arrival = ends[1];
      life();
      ::_exit(1);
    }
    ::close(ends[1]);
    char arrived = 0;
    EXPECT_EQ(::read(ends[0], &arrived, 1), 1) << "the other process ended";
    ::close(ends[0]);
  }
  ~OtherProcess() { end(); }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  /// For `life`: with what it has so far, and for good.
  [[noreturn]] static void stay() {
    static_cast<void>(::write(arrival, "x", 1));
    for (;;) ::pause();
  }

  void signal(int number) const { ::kill(process_, number); }
  void end() {
    if (process_ <= 0) return;
    signal(SIGKILL);
    EXPECT_EQ(::waitpid(process_, nullptr, 0), process_);
    process_ = -1;
  }
  /// Ended, and known to nobody yet.
  void become_zombie() const {
    signal(SIGKILL);
    siginfo_t info;
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOWAIT), 0);
  }

 private:
  static inline int arrival = -1;
  pid_t process_ = -1;
};

}  // namespace kvferry
