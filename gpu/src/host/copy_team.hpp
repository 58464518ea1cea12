// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/batch_copy.hpp"
#include "kvferry/base/mutex.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <sys/types.h>
#include <thread>
#include <vector>

namespace kvferry::gpu {

/// Threads that help the streams of a host device with large copies. They start with the first job;
/// after one they look out for the next for 50 us, then sleep. Thread-safe.
class CopyTeam {
 public:
  using Part = std::function<void(std::uint32_t)>;

  explicit CopyTeam(std::uint32_t num_helpers);
  /// No job is under way, and the process is the one that made it. Waits for the helpers to end.
  ~CopyTeam();
  CopyTeam(const CopyTeam&) = delete;
  CopyTeam& operator=(const CopyTeam&) = delete;

  /// False in a process that was forked: it has no helpers, callers copy alone there, and the team
  /// is not to be destroyed.
  [[nodiscard]] bool is_of_this_process() const;

  /// Of one job: the helpers and the caller.
  [[nodiscard]] std::uint32_t num_threads() const { return num_helpers_ + 1; }

  /// Calls part(i) once for each i below `num_parts`, on the calling thread and on helpers, and
  /// returns when all have returned; what they wrote is seen then. A helper joins only where fewer
  /// than num_threads() callers and helpers are at work. `part` does not throw and starts no job. A
  /// helper that cannot be started is done without.
  void run(std::uint32_t num_parts, const Part& part);

 private:
  struct Job {
    const Part& part;
    const std::uint32_t num_parts;
    std::atomic<std::uint32_t> next = 0;  ///< The first part that nobody took.
    std::atomic<std::uint32_t> num_helpers = 0;
  };

  static void work_on(Job& job);
  void start_helpers() KVFERRY_REQUIRES(mutex_);
  void help();
  /// The job that a helper is to join, or null.
  Job* next_job() KVFERRY_REQUIRES(mutex_);
  /// Returns when there may be a job.
  void await_job() KVFERRY_REQUIRES(mutex_);
  /// Takes a job away and waits for its helpers.
  void end(Job& job) KVFERRY_REQUIRES(mutex_);
  /// To be called when jobs_ or num_busy_ changed.
  void tell_helpers() KVFERRY_REQUIRES(mutex_);

  const std::uint32_t num_helpers_;
  const pid_t process_;
  Mutex mutex_;
  CondVar submitted_;
  CondVar ended_;
  /// Jobs of which parts may be left.
  std::vector<Job*> jobs_ KVFERRY_GUARDED_BY(mutex_);
  std::uint32_t num_busy_ KVFERRY_GUARDED_BY(mutex_) = 0;  ///< Callers and helpers.
  std::uint32_t num_asleep_ KVFERRY_GUARDED_BY(mutex_) = 0;
  bool closing_ KVFERRY_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_ KVFERRY_GUARDED_BY(mutex_);
  /// For those that look out without the lock: a helper could join a job.
  std::atomic<bool> wanted_ = false;
};

/// Copies the first `end` bytes of a batch, with the team's help where it pays.
void copy_with(CopyTeam& team, const BatchCopy& batch, std::uint64_t end);

}  // namespace kvferry::gpu
