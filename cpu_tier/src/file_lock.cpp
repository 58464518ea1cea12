// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/file_lock.hpp"

#include <cerrno>
#include <fcntl.h>

namespace kvferry::cpu_tier {
namespace {

struct flock lock_on(std::uint64_t begin, std::uint64_t count) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(begin);
  lock.l_len = static_cast<off_t>(count);
  return lock;
}

}  // namespace

int lock_bytes(int descriptor, std::uint64_t begin, std::uint64_t count) {
  struct flock lock = lock_on(begin, count);
  if (::fcntl(descriptor, F_OFD_SETLK, &lock) == 0) return 0;
  // POSIX leaves open which of the two it is.
  return errno == EACCES ? EAGAIN : errno;
}

bool is_locked(int descriptor, std::uint64_t byte) {
  struct flock lock = lock_on(byte, 1);
  return ::fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace kvferry::cpu_tier
