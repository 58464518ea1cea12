// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena_growth.hpp"

#include "kvferry/base/test_hooks.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

/// A gentle growth works a quarter of its time: continuous copies at a quarter of a link's rate had
/// no cost for an engine that was seen (reference: 25 % duty, 0 %).
constexpr int kPausesPerStep = 3;

/// How long it waits for an order, which wakes it.
constexpr std::chrono::hours kLongWait{1};

}  // namespace

ArenaGrowth::ArenaGrowth(Arena& arena, const GrowthOptions& options)
    : arena_(arena),
      options_(options),
      thread_([this](const std::stop_token& stop) { work(stop); }) {}

ArenaGrowth::~ArenaGrowth() { close(); }

void ArenaGrowth::go_gently() {
  MutexLock lock(mutex_);
  gentle_ = true;
}

bool ArenaGrowth::gentle() const {
  MutexLock lock(mutex_);
  return gentle_;
}

bool ArenaGrowth::ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

std::string ArenaGrowth::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

std::optional<ArenaReport> ArenaGrowth::last_report() const {
  MutexLock lock(mutex_);
  return last_report_;
}

void ArenaGrowth::close() {
  thread_.request_stop();
  KVFERRY_PAUSE_POINT("arena.close");
  {
    MutexLock lock(mutex_);
    woken_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void ArenaGrowth::order(ArenaOrder order) {
  MutexLock lock(mutex_);
  orders_.push_back(std::move(order));
  woken_.notify_all();
}

std::vector<std::string> ArenaGrowth::take_ends() {
  MutexLock lock(mutex_);
  return std::exchange(ends_, {});
}

void ArenaGrowth::work(const std::stop_token& stop) {
  bool growing = true;
  while (!stop.stop_requested()) {
    if (const auto order = wait(stop, growing)) {
      obey(*order, stop);
      continue;
    }
    if (!growing || stop.stop_requested()) break;
    std::string failure;
    try {
      KVFERRY_PAUSE_POINT("arena.growth");
      const Clock::time_point began = Clock::now();
      const std::uint64_t bytes = grow(stop);
      growing = bytes > 0;
      // The wait for other members does not count as work. Otherwise members that wait for each
      // other's pauses would pause longer and longer.
      set_pace(bytes, Clock::now() - began - arena_.waited());
    } catch (const std::exception& error) {
      failure = error.what();
      growing = false;
    }
    if (!growing) end_growth(stop, std::move(failure));
  }
  if (growing) end_growth(stop, {});
}

std::uint64_t ArenaGrowth::grow(const std::stop_token& stop) {
  const std::uint64_t most = gentle() || options_.pinning_bandwidth_limit > 0 ? 1 : step_bytes_;
  const std::uint64_t bytes = arena_.grow(most, stop) * arena_.chunk_bytes();
  step_bytes_ = 2 * std::max(bytes, step_bytes_);
  return bytes;
}

void ArenaGrowth::end_growth(const std::stop_token& stop, std::string failure) {
  arena_.end_growth();
  // The report is made here, because it reads everything that the kernel knows about the pages.
  const auto report =
      stop.stop_requested() ? std::optional<ArenaReport>() : std::optional(arena_.report());
  MutexLock lock(mutex_);
  failure_ = std::move(failure);
  last_report_ = report;
  ended_ = true;
}

std::optional<ArenaOrder> ArenaGrowth::wait(const std::stop_token& stop, bool growing) {
  MutexLock lock(mutex_);
  while (!stop.stop_requested()) {
    const bool is_retirement = !orders_.empty() && orders_.front().change == ArenaChange::kRetire;
    const Clock::time_point due = is_retirement ? retirement_due_ : due_;
    const Clock::time_point now = Clock::now();
    if (orders_.empty() && !growing) {
      woken_.wait_for(mutex_, kLongWait);
    } else if (now < due) {
      woken_.wait_for(mutex_, due - now);
    } else if (orders_.empty()) {
      return std::nullopt;
    } else {
      const ArenaOrder order = orders_.front();
      orders_.pop_front();
      return order;
    }
  }
  return std::nullopt;
}

void ArenaGrowth::obey(const ArenaOrder& order, const std::stop_token& stop) {
  const Clock::time_point began = Clock::now();
  std::uint64_t bytes = 0;
  std::string failure;
  try {
    KVFERRY_PAUSE_POINT("arena.order");
    if (order.change == ArenaChange::kRetire) {
      arena_.retire(order.chunks);
    } else {
      const std::uint32_t before = arena_.num_usable();
      if (!arena_.restore(order.chunks, stop)) return;
      bytes = (arena_.num_usable() - before) * arena_.chunk_bytes();
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  set_pace(bytes, Clock::now() - began);
  MutexLock lock(mutex_);
  ends_.push_back(std::move(failure));
}

void ArenaGrowth::set_pace(std::uint64_t bytes, std::chrono::nanoseconds took) {
  const Clock::time_point now = Clock::now();
  retirement_due_ = now + (gentle() ? kPausesPerStep * took : std::chrono::nanoseconds(0));
  // A retirement between two steps does not make the second step come earlier.
  due_ = std::max(due_, retirement_due_);
  if (options_.pinning_bandwidth_limit == 0) return;
  const std::chrono::duration<double> least(static_cast<double>(bytes) /
                                            static_cast<double>(options_.pinning_bandwidth_limit));
  due_ = std::max(due_, now + std::chrono::duration_cast<std::chrono::nanoseconds>(least) - took);
}

}  // namespace kvferry::cpu_tier
