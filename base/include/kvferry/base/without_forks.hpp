// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace kvferry {

/// While an object of this class lives, fork() in any other thread waits. So a child never sees the
/// work of such a section half done, for example a file that is open but not yet registered for
/// closing in children.
///
/// The section must be short and must only make system calls that do not block. It must not
/// allocate memory, because an allocator can have its own handlers for fork(), and it must take no
/// lock. Signals of its thread wait until it ends, so that no handler forks in it. Sections of one
/// thread can nest. Any thread can open one; the same thread ends it.
///
/// vfork() and posix_spawn() do not wait: their children call exec at once, and O_CLOEXEC closes
/// their descriptors.
class WithoutForks {
 public:
  WithoutForks();
  ~WithoutForks();
  WithoutForks(const WithoutForks&) = delete;
  WithoutForks& operator=(const WithoutForks&) = delete;

 private:
  sigset_t signals_before_{};
};

}  // namespace kvferry
