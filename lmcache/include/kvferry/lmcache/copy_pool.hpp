// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/batch_copy.hpp"
#include "kvferry/base/mutex.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace kvferry::lmcache {

enum class CopyEnd : std::uint8_t {
  kDone,  ///< Every byte was copied; every thread that learns of the end sees the bytes.
  kGivenUp
};

/// Whether a job makes the sums of what it copies (gpu/tag_sum.hpp).
enum class CopySums : std::uint8_t { kNone, kMade };

/// One batch of copies. Whatever happens, end() is called exactly once, by the last thread that
/// works on it, and no thread touches its memory afterwards.
class CopyJob {
 public:
  /// From `streaming_bytes` on the copies bypass the caches. `num_threads` threads share the work.
  /// A small batch is one part; the parts of larger ones are so small that a load can wait for one.
  CopyJob(std::vector<CopyRun> runs, std::uint32_t num_threads, std::uint64_t streaming_bytes,
          CopySums sums);
  virtual ~CopyJob() = default;
  CopyJob(const CopyJob&) = delete;
  CopyJob& operator=(const CopyJob&) = delete;

  [[nodiscard]] std::uint64_t num_bytes() const { return num_bytes_; }
  [[nodiscard]] std::uint32_t num_parts() const {
    return static_cast<std::uint32_t>(parts_.size());
  }

 protected:
  virtual void end(CopyEnd how) noexcept = 0;
  [[nodiscard]] std::span<const CopyRun> runs() const { return runs_; }
  /// The gpu::tag_sum() of each run; empty if none are made. For end() after kDone.
  [[nodiscard]] std::span<const std::uint64_t> sums() const { return sums_; }

 private:
  friend class CopyPool;
  [[nodiscard]] bool has_parts() const {
    return next_.load(std::memory_order_relaxed) < num_parts();
  }
  /// Copies the next part, if there is one.
  bool copy_next() noexcept;
  void copy(const BatchCopy::Part& part) noexcept;
  /// Makes sure that no thread begins another part.
  void give_up() noexcept;
  void ended(std::uint32_t num_parts) noexcept;

  const std::vector<CopyRun> runs_;
  const std::uint64_t num_bytes_;
  const BatchCopy batch_;
  std::vector<BatchCopy::Part> parts_;
  /// By run. Several threads add to one sum.
  std::vector<std::uint64_t> sums_;
  std::atomic<std::uint32_t> next_ = 0;
  std::atomic<std::uint32_t> num_left_;
  std::atomic<bool> given_up_ = false;
};

/// A waiting load goes before a waiting store, because a request's first token depends on it.
enum class CopyUrgency : std::uint8_t { kLoad, kStore };

/// Threads that copy. All of them work on the same job: loads before stores, otherwise in the order
/// of submission. After a job they poll for the next one for 50 us, then sleep. Thread-safe.
class CopyPool {
 public:
  /// 0: as many threads as the process can run at once, at most 16 (copy_threads.hpp). Throws
  /// ResourceError if no thread can be started.
  explicit CopyPool(std::uint32_t num_threads = 0);
  /// close().
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  [[nodiscard]] std::uint32_t num_threads() const { return num_threads_; }

  /// After close(), jobs end at once as given up.
  void submit(const std::shared_ptr<CopyJob>& job, CopyUrgency urgency) noexcept;
  /// Copies the whole job on the calling thread.
  static void run(CopyJob& job);
  /// Begins no more parts, and returns when every job has ended. Idempotent.
  void close();

 private:
  using Queue = std::deque<std::shared_ptr<CopyJob>>;

  void work();
  /// The job on which the threads work now, or null.
  [[nodiscard]] std::shared_ptr<CopyJob> next_job() KVFERRY_REQUIRES(mutex_);
  void await_job() KVFERRY_REQUIRES(mutex_);
  void count_waiting() KVFERRY_REQUIRES(mutex_);

  const std::uint32_t num_threads_;
  Mutex mutex_;
  CondVar submitted_;
  std::array<Queue, 2> queues_ KVFERRY_GUARDED_BY(mutex_);  ///< By urgency.
  std::uint32_t num_asleep_ KVFERRY_GUARDED_BY(mutex_) = 0;
  bool closing_ KVFERRY_GUARDED_BY(mutex_) = false;
  /// For threads that poll without the lock.
  std::atomic<bool> has_jobs_ = false;
  std::atomic<bool> has_loads_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvferry::lmcache
