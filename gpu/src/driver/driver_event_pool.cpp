// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_event_pool.hpp"

#include "driver/driver_context.hpp"
#include "driver/driver_scope.hpp"

namespace kvferry::gpu {
namespace {

// If many events are pending, take() queries at most this many.
constexpr int kMostQueries = 4;

}  // namespace

DriverEventPool::~DriverEventPool() {
  std::vector<EventHandle> all;
  {
    MutexLock lock(mutex_);
    all.swap(free_);
    all.insert(all.end(), pending_.begin(), pending_.end());
    pending_.clear();
  }
  if (all.empty() || context_.lost()) return;
  const DriverScope scope(context_);
  for (const EventHandle event : all) static_cast<void>(context_.api().destroy_event(event));
}

EventHandle DriverEventPool::take() {
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      const EventHandle event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  if (const EventHandle event = reclaim(); event != EventHandle{}) return event;
  const auto created = context_.api().create_event();
  context_.check(created.result, "create an event");
  return created.value;
}

void DriverEventPool::give_back(EventHandle event, EventState state) {
  if (state == EventState::kFailed) {
    if (context_.lost()) return;
    const DriverScope scope(context_);
    static_cast<void>(context_.api().destroy_event(event));
    return;
  }
  MutexLock lock(mutex_);
  if (state == EventState::kPending) {
    pending_.push_back(event);
  } else {
    free_.push_back(event);
  }
}

EventHandle DriverEventPool::reclaim() {
  for (int i = 0; i < kMostQueries; ++i) {
    EventHandle event{};
    {
      MutexLock lock(mutex_);
      if (pending_.empty()) return EventHandle{};
      event = pending_.front();
      pending_.pop_front();
    }
    if (context_.note(context_.api().query_event(event), "query an event").ok()) return event;
    MutexLock lock(mutex_);
    pending_.push_back(event);
  }
  return EventHandle{};
}

}  // namespace kvferry::gpu
