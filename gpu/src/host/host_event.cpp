// SPDX-License-Identifier: Apache-2.0
#include "host/host_event.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/deadline.hpp"

#include <utility>

namespace kvferry::gpu {

void HostRecord::finish(std::string failure) {
  MutexLock lock(mutex_);
  KVFERRY_CHECK(state_ == EventState::kPending, "a record was finished twice");
  state_ = failure.empty() ? EventState::kDone : EventState::kFailed;
  failure_ = std::move(failure);
  finished_at_ = std::chrono::steady_clock::now();
  finished_.notify_all();
}

EventState HostRecord::state() const {
  MutexLock lock(mutex_);
  return state_;
}

EventState HostRecord::wait(std::chrono::nanoseconds bound) const {
  const Deadline deadline(bound);
  MutexLock lock(mutex_);
  while (state_ == EventState::kPending && !deadline.passed()) {
    finished_.wait_for(mutex_, deadline.remaining());
  }
  return state_;
}

std::string HostRecord::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

std::chrono::steady_clock::time_point HostRecord::finished_at() const {
  MutexLock lock(mutex_);
  return finished_at_;
}

EventState HostEvent::query() const {
  const auto current = record();
  return current ? current->state() : EventState::kUnrecorded;
}

EventState HostEvent::wait(std::chrono::nanoseconds bound) const {
  const auto current = record();
  return current ? current->wait(bound) : EventState::kUnrecorded;
}

std::string HostEvent::failure() const {
  const auto current = record();
  return current ? current->failure() : std::string();
}

std::chrono::nanoseconds HostEvent::elapsed_since(const Event& from) const {
  const auto begin = of(from, context_).record();
  const auto end = record();
  if (!begin || begin->state() != EventState::kDone) {
    throw DeviceError("elapsed_since: the event that begins the span is not done");
  }
  if (!end || end->state() != EventState::kDone) {
    throw DeviceError("elapsed_since: the event that ends the span is not done");
  }
  return end->finished_at() - begin->finished_at();
}

void HostEvent::refer_to(std::shared_ptr<const HostRecord> record) {
  MutexLock lock(mutex_);
  record_ = std::move(record);
}

std::shared_ptr<const HostRecord> HostEvent::record() const {
  MutexLock lock(mutex_);
  return record_;
}

const HostEvent& HostEvent::of(const Event& event, const HostContext& context) {
  const auto* host_event = dynamic_cast<const HostEvent*>(&event);
  if (host_event == nullptr || &host_event->context_ != &context) {
    throw DeviceError("the event was made by another device than the one it is used with");
  }
  return *host_event;
}

HostEvent& HostEvent::of(Event& event, const HostContext& context) {
  return const_cast<HostEvent&>(of(std::as_const(event), context));
}

}  // namespace kvferry::gpu
