// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_event.hpp"

#include "driver/driver_context.hpp"
#include "driver/driver_scope.hpp"

#include <utility>

namespace kvferry::gpu {

DriverEvent::DriverEvent(DriverContext& context) : context_(context) { ++context_.num_events; }

DriverEvent::~DriverEvent() {
  refer_to(nullptr);
  --context_.num_events;
}

EventState DriverEvent::query() const {
  const auto current = record();
  return current ? current->state() : EventState::kUnrecorded;
}

EventState DriverEvent::wait(std::chrono::nanoseconds bound) const {
  const auto current = record();
  return current ? current->wait(bound) : EventState::kUnrecorded;
}

std::string DriverEvent::failure() const {
  const auto current = record();
  return current ? current->failure() : std::string();
}

std::chrono::nanoseconds DriverEvent::elapsed_since(const Event& from) const {
  const auto begin = of(from, context_).record();
  const auto end = record();
  if (!begin || begin->state() != EventState::kDone) {
    throw DeviceError("elapsed_since: the event that begins the span is not done");
  }
  if (!end || end->state() != EventState::kDone) {
    throw DeviceError("elapsed_since: the event that ends the span is not done");
  }
  const DriverScope scope(context_);
  const auto elapsed = context_.api().elapsed(begin->handle(), end->handle());
  context_.check(elapsed.result, "tell the time between two events");
  return elapsed.value;
}

// The old record is released after the lock, because its destructor may call the driver.
void DriverEvent::refer_to(std::shared_ptr<const DriverRecord> record) {
  MutexLock lock(mutex_);
  record_.swap(record);
}

std::shared_ptr<const DriverRecord> DriverEvent::record() const {
  MutexLock lock(mutex_);
  return record_;
}

const DriverEvent& DriverEvent::of(const Event& event, const DriverContext& context) {
  const auto* driver_event = dynamic_cast<const DriverEvent*>(&event);
  if (driver_event == nullptr || &driver_event->context_ != &context) {
    throw DeviceError("the event was made by another device than the one it is used with");
  }
  return *driver_event;
}

DriverEvent& DriverEvent::of(Event& event, const DriverContext& context) {
  return const_cast<DriverEvent&>(of(std::as_const(event), context));
}

}  // namespace kvferry::gpu
