// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/deadline.hpp"

#include "host/host_stream.hpp"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

namespace kvferry::gpu {

HostThreadStream::HostThreadStream(HostContext& context) : HostStream(context), runner_(context) {
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& error) {
    throw DeviceError(std::string("cannot start the thread of a host stream: ") + error.what());
  }
}

HostThreadStream::~HostThreadStream() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    submitted_.notify_all();
  }
  thread_.join();
}

bool HostThreadStream::synchronize(std::chrono::nanoseconds bound) {
  const Deadline deadline(bound);
  MutexLock lock(mutex_);
  const std::uint64_t target = num_submitted_;
  while (num_ended_ < target) {
    if (deadline.passed() || in_doubt()) return false;
    ended_.wait_for(mutex_, std::min(deadline.remaining(), kLossSlice));
  }
  return !in_doubt();
}

void HostThreadStream::submit(HostOperation operation) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(operation));
  ++num_submitted_;
  submitted_.notify_one();
}

void HostThreadStream::serve() {
  while (const auto operation = take()) {
    runner_.run(*operation);
    count_ended();
  }
}

std::optional<HostOperation> HostThreadStream::take() {
  MutexLock lock(mutex_);
  while (queue_.empty()) {
    if (closing_) return std::nullopt;
    submitted_.wait(mutex_);
  }
  std::optional<HostOperation> operation(std::move(queue_.front()));
  queue_.pop_front();
  return operation;
}

void HostThreadStream::count_ended() {
  MutexLock lock(mutex_);
  ++num_ended_;
  ended_.notify_all();
}

}  // namespace kvferry::gpu
