// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/file_lock.hpp"

#include <cerrno>
#include <fcntl.h>

namespace kvferry::cpu_tier {
namespace {

struct flock lock_on(short type, std::uint64_t begin, std::uint64_t count) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(begin);
  lock.l_len = static_cast<off_t>(count);
  return lock;
}

int set_lock(int descriptor, struct flock lock) {
  if (::fcntl(descriptor, F_OFD_SETLK, &lock) == 0) return 0;
  // POSIX allows either of the two.
  return errno == EACCES ? EAGAIN : errno;
}

}  // namespace

int lock_bytes(int descriptor, std::uint64_t begin, std::uint64_t count) {
  return set_lock(descriptor, lock_on(F_WRLCK, begin, count));
}

int share_bytes(int descriptor, std::uint64_t begin, std::uint64_t count) {
  return set_lock(descriptor, lock_on(F_RDLCK, begin, count));
}

void unlock_bytes(int descriptor, std::uint64_t begin, std::uint64_t count) noexcept {
  static_cast<void>(set_lock(descriptor, lock_on(F_UNLCK, begin, count)));
}

bool is_locked(int descriptor, std::uint64_t begin, std::uint64_t count) {
  struct flock lock = lock_on(F_WRLCK, begin, count);
  return ::fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace kvferry::cpu_tier
