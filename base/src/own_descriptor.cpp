// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/own_descriptor.hpp"

#include "kvferry/base/error.hpp"

#include <array>
#include <atomic>
#include <pthread.h>
#include <string>
#include <unistd.h>
#include <utility>

namespace kvferry {
namespace {

constexpr int kNone = -1;

/// Every open one; a free entry is 0, others are the descriptor and one. Plain atomics, because a
/// forked child may take no lock that another thread of its parent held.
std::array<std::atomic<int>, OwnDescriptor::kMost> open_ones{};

void close_all_in_child() {
  for (std::atomic<int>& each : open_ones) {
    if (const int seen = each.exchange(0, std::memory_order_relaxed); seen != 0) ::close(seen - 1);
  }
}

void watch_forks() {
  static const int once = ::pthread_atfork(nullptr, nullptr, &close_all_in_child);
  static_cast<void>(once);
}

}  // namespace

OwnDescriptor::OwnDescriptor(int descriptor) {
  if (descriptor < 0) return;
  watch_forks();
  for (std::uint32_t i = 0; i < kMost; ++i) {
    int free = 0;
    if (open_ones[i].compare_exchange_strong(free, descriptor + 1, std::memory_order_relaxed)) {
      entry_ = i;
      return;
    }
  }
  ::close(descriptor);
  throw ResourceError("this process has " + std::to_string(kMost) +
                      " files of tiers open already; close some of its tiers");
}

OwnDescriptor::~OwnDescriptor() {
  if (entry_ == kNoEntry) return;
  if (const int seen = open_ones[entry_].exchange(0, std::memory_order_relaxed); seen != 0) {
    ::close(seen - 1);
  }
}

OwnDescriptor::OwnDescriptor(OwnDescriptor&& other) noexcept
    : entry_(std::exchange(other.entry_, kNoEntry)) {}

OwnDescriptor& OwnDescriptor::operator=(OwnDescriptor&& other) noexcept {
  std::swap(entry_, other.entry_);
  return *this;
}

int OwnDescriptor::get() const {
  if (entry_ == kNoEntry) return kNone;
  return open_ones[entry_].load(std::memory_order_relaxed) - 1;
}

}  // namespace kvferry
