// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace kvferry {

/// While one lives, no thread of this process forks: fork() in another thread waits. So a child
/// never has half of what is done in such a section, for example a file that is open and not yet
/// known to those that close it in children.
///
/// The section is short and makes system calls that do not block. It allocates nothing, because an
/// allocator may have handlers of its own for fork(), and takes no lock. Signals of its thread wait
/// until it ends, so that no handler forks in it. Sections of one thread may nest. Any thread.
///
/// vfork() and posix_spawn() do not wait: their children call exec at once, on which O_CLOEXEC
/// closes what they have.
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
