// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/without_forks.hpp"

#include <pthread.h>

namespace kvferry {
namespace {

// A plain pthread mutex: it is locked before a fork and unlocked after it, in parent and child, and
// it exists as long as any thread runs.
pthread_mutex_t forks_wait = PTHREAD_MUTEX_INITIALIZER;
/// Number of nested sections of this thread.
thread_local int num_sections = 0;

// A thread that forks within its own section has the lock already, and keeps it after the fork.
void before_fork() {
  if (num_sections == 0) ::pthread_mutex_lock(&forks_wait);
}
void after_fork() {
  if (num_sections == 0) ::pthread_mutex_unlock(&forks_wait);
}

void make_forks_wait() {
  static const int kOnce = ::pthread_atfork(&before_fork, &after_fork, &after_fork);
  static_cast<void>(kOnce);
}

}  // namespace

WithoutForks::WithoutForks() {
  make_forks_wait();
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &signals_before_);
  if (num_sections++ == 0) ::pthread_mutex_lock(&forks_wait);
}

WithoutForks::~WithoutForks() {
  if (--num_sections == 0) ::pthread_mutex_unlock(&forks_wait);
  ::pthread_sigmask(SIG_SETMASK, &signals_before_, nullptr);
}

}  // namespace kvferry
