// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/own_descriptor.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/base/without_forks.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <pthread.h>
#include <string>
#include <sys/file.h>
#include <unistd.h>
#include <utility>

namespace kvferry {
namespace {

constexpr int kNone = -1;

/// All open descriptors: an entry is the descriptor plus one, or one of these. Entries change only
/// in sections without forks. They are atomics, so get() takes no lock.
std::array<std::atomic<int>, OwnDescriptor::kMost> open_ones{};
constexpr int kFree = 0;
/// The entry of an object from before a fork, in the child. The object still refers to it, so it
/// must not become that of another file.
constexpr int kLost = -1;

void close_all_in_child() {
  for (std::atomic<int>& each : open_ones) {
    const int seen = each.load(std::memory_order_relaxed);
    if (seen <= 0) continue;
    each.store(kLost, std::memory_order_relaxed);
    // This is a copy of the descriptor; its close does not end the parent's locks.
    ::close(seen - 1);
  }
}

void watch_forks() {
  static const int kOnce = ::pthread_atfork(nullptr, nullptr, &close_all_in_child);
  static_cast<void>(kOnce);
}

/// Registers the descriptor and returns its entry; kMost: there is no room.
std::uint32_t enter(int descriptor) {
  for (std::uint32_t i = 0; i < OwnDescriptor::kMost; ++i) {
    int free = kFree;
    if (open_ones[i].compare_exchange_strong(free, descriptor + 1, std::memory_order_relaxed)) {
      return i;
    }
  }
  return OwnDescriptor::kMost;
}

/// Ends the locks of the open file description. A close alone would not end them if another process
/// had a copy of the descriptor.
void unlock(int descriptor) {
  struct flock whole {};
  whole.l_type = F_UNLCK;
  whole.l_whence = SEEK_SET;
  static_cast<void>(::fcntl(descriptor, F_OFD_SETLK, &whole));
  static_cast<void>(::flock(descriptor, LOCK_UN));
}

}  // namespace

OwnDescriptor OwnDescriptor::open(const char* path, int flags, mode_t mode) {
  return opened_by([&] { return ::open(path, flags | O_CLOEXEC, mode); });
}

OwnDescriptor::OwnDescriptor(Opener opener, void* context) {
  watch_forks();
  int descriptor = kNone;
  int error = 0;
  {
    const WithoutForks section;
    descriptor = opener(context);
    error = errno;
    KVFERRY_PAUSE_POINT("own_descriptor.opened");
    if (descriptor >= 0) {
      entry_ = enter(descriptor);
      if (entry_ == kNoEntry) ::close(descriptor);
    }
  }
  errno = error;
  if (descriptor < 0 || entry_ != kNoEntry) return;
  throw ResourceError("this process has " + std::to_string(kMost) +
                      " files of tiers open already; close some of its tiers");
}

OwnDescriptor::~OwnDescriptor() {
  if (entry_ == kNoEntry) return;
  const WithoutForks section;
  const int seen = open_ones[entry_].exchange(kFree, std::memory_order_relaxed);
  if (seen == kLost) return;
  unlock(seen - 1);
  ::close(seen - 1);
}

OwnDescriptor::OwnDescriptor(OwnDescriptor&& other) noexcept
    : entry_(std::exchange(other.entry_, kNoEntry)) {}

OwnDescriptor& OwnDescriptor::operator=(OwnDescriptor&& other) noexcept {
  std::swap(entry_, other.entry_);
  return *this;
}

int OwnDescriptor::get() const {
  if (entry_ == kNoEntry) return kNone;
  return std::max(open_ones[entry_].load(std::memory_order_relaxed) - 1, kNone);
}

}  // namespace kvferry
