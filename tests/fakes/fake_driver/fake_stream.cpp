// SPDX-License-Identifier: Apache-2.0
#include "fake_core.hpp"

#include <utility>

namespace kvferry::fakes {
namespace {

constexpr std::chrono::seconds kWaitSlice{1};

}  // namespace

void FakePoint::reach() {
  MutexLock lock(mutex_);
  reached_ = true;
  when_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

bool FakePoint::reached() const {
  MutexLock lock(mutex_);
  return reached_;
}

void FakePoint::wait() const {
  MutexLock lock(mutex_);
  while (!reached_) changed_.wait_for(mutex_, kWaitSlice);
}

std::chrono::steady_clock::time_point FakePoint::when() const {
  MutexLock lock(mutex_);
  return when_;
}

FakeStream::FakeStream(int device, int priority)
    : device_(device), priority_(priority), thread_([this] { serve(); }) {}

FakeStream::~FakeStream() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    submitted_.notify_all();
  }
  thread_.join();
}

void FakeStream::submit(std::function<void()> work) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(work));
  ++num_submitted_;
  submitted_.notify_all();
}

bool FakeStream::idle() const {
  MutexLock lock(mutex_);
  return queue_.empty() && !busy_;
}

void FakeStream::drain() const {
  MutexLock lock(mutex_);
  const std::uint64_t last = num_submitted_;
  while (num_submitted_ - queue_.size() - (busy_ ? 1 : 0) < last) {
    ended_.wait_for(mutex_, kWaitSlice);
  }
}

void FakeStream::drop() {
  MutexLock lock(mutex_);
  queue_.clear();
  ended_.notify_all();
}

void FakeStream::hold(bool held) {
  MutexLock lock(mutex_);
  held_ = held;
  submitted_.notify_all();
}

void FakeStream::serve() {
  while (const auto work = take()) work();
}

std::function<void()> FakeStream::take() {
  MutexLock lock(mutex_);
  busy_ = false;
  ended_.notify_all();
  while (queue_.empty() || (held_ && !closing_)) {
    if (closing_) return {};
    submitted_.wait_for(mutex_, kWaitSlice);
  }
  auto work = std::move(queue_.front());
  queue_.pop_front();
  busy_ = true;
  return work;
}

}  // namespace kvferry::fakes
