// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_record.hpp"

#include "driver/driver_context.hpp"
#include "driver/driver_scope.hpp"
#include "driver/poll_until.hpp"

#include <utility>

namespace kvferry::gpu {

DriverRecord::DriverRecord(DriverContext& context, EventHandle event, std::string failure)
    : context_(context), event_(event), inherited_failure_(std::move(failure)) {}

DriverRecord::DriverRecord(DriverContext& context)
    : context_(context), state_(EventState::kFailed), failure_(context.why_lost()) {}

DriverRecord::~DriverRecord() {
  if (event_ == EventHandle{}) return;
  // A failure that the stream passed on is not the event's own: the event's point was reached.
  const EventState state = known_state();
  const bool reached = state == EventState::kFailed && failure() == inherited_failure_;
  context_.event_pool().give_back(event_, reached ? EventState::kDone : state);
}

EventState DriverRecord::state() const {
  const EventState known = known_state();
  if (known != EventState::kPending) return known;
  if (context_.lost()) return finish(context_.why_lost());
  const DriverScope scope(context_);
  const DriverResult result = context_.note(context_.api().query_event(event_), "query an event");
  if (result.ok()) return finish(inherited_failure_);
  if (context_.lost()) return finish(context_.why_lost());
  // Not ready yet; or the query itself failed, which does not say that the work has ended. If that
  // goes on, who waits runs out of patience.
  return EventState::kPending;
}

EventState DriverRecord::wait(std::chrono::nanoseconds bound) const {
  EventState last = EventState::kPending;
  static_cast<void>(poll_until(bound, [&] {
    last = state();
    return last != EventState::kPending;
  }));
  return last;
}

std::string DriverRecord::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

EventState DriverRecord::known_state() const {
  MutexLock lock(mutex_);
  return state_;
}

EventState DriverRecord::finish(std::string failure) const {
  MutexLock lock(mutex_);
  if (state_ == EventState::kPending) {
    state_ = failure.empty() ? EventState::kDone : EventState::kFailed;
    failure_ = std::move(failure);
  }
  return state_;
}

}  // namespace kvferry::gpu
