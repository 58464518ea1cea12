// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/thread_annotations.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace kvferry {

/// A std::mutex that clang's thread-safety analysis can follow. Never hold a lock during a device
/// call, a blocking system call or a Python call.
class KVFERRY_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() KVFERRY_ACQUIRE() { mutex_.lock(); }
  void unlock() KVFERRY_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex for a scope.
class KVFERRY_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KVFERRY_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() KVFERRY_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Condition variable for Mutex. Every wait has a time limit. Callers loop over their predicate
/// themselves, so that the analysis sees the guarded reads under the lock.
class CondVar {
 public:
  /// Waits until it is notified or `bound` has passed; can also wake spuriously.
  void wait_for(Mutex& mutex, std::chrono::nanoseconds bound) KVFERRY_REQUIRES(mutex) {
    cv_.wait_for(mutex, bound);
  }
  /// The same where a notification always comes.
  void wait(Mutex& mutex) KVFERRY_REQUIRES(mutex) { wait_for(mutex, std::chrono::seconds(1)); }
  void notify_one() { cv_.notify_one(); }
  void notify_all() { cv_.notify_all(); }

 private:
  std::condition_variable_any cv_;
};

}  // namespace kvferry
