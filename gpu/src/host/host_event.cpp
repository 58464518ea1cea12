// SPDX-License-Identifier: Apache-2.0
#include "host/host_event.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/deadline.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "host/host_context.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::gpu {

void HostRecord::finish(std::string failure) {
  MutexLock lock(mutex_);
  KVFERRY_CHECK(!std::exchange(reached_, true), "a record was finished twice");
  if (!loss_->lost()) {
    state_ = failure.empty() ? EventState::kDone : EventState::kFailed;
    failure_ = std::move(failure);
    finished_at_ = std::chrono::steady_clock::now();
  }
  finished_.notify_all();
}

EventState HostRecord::state() const {
  MutexLock lock(mutex_);
  return settle();
}

EventState HostRecord::wait(std::chrono::nanoseconds bound) const {
  const Deadline deadline(bound);
  MutexLock lock(mutex_);
  while (settle() == EventState::kPending && !deadline.passed()) {
    finished_.wait_for(mutex_, std::min(deadline.remaining(), kLossSlice));
  }
  return settle();
}

void HostRecord::wait_reached() const {
  MutexLock lock(mutex_);
  while (!reached_ && !loss_->quiet()) finished_.wait_for(mutex_, kLossSlice);
}

EventState HostRecord::settle() const {
  if (state_ == EventState::kPending && loss_->lost()) {
    state_ = EventState::kFailed;
    failure_ = loss_->why();
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

HostEvent::HostEvent(HostContext& context) : context_(context) { ++context_.num_events; }

HostEvent::~HostEvent() { --context_.num_events; }

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
  KVFERRY_PAUSE_POINT("gpu.host.elapsed");
  if (KVFERRY_FAULT_POINT("gpu.host.elapsed")) {
    throw DeviceError("elapsed_since: failed by request of the test");
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
