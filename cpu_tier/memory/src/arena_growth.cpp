// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena_growth.hpp"

#include "kvferry/base/test_hooks.hpp"

#include <algorithm>
#include <exception>

namespace kvferry::cpu_tier {
namespace {

using Clock = std::chrono::steady_clock;

/// Of its time a gentle growth works a quarter: continuous copies of a fourth of a link's rate cost
/// an engine nothing that was seen (reference: 25 % duty, 0 %).
constexpr int kPausesPerStep = 3;

}  // namespace

ArenaGrowth::ArenaGrowth(Arena& arena, const GrowthOptions& options)
    : arena_(arena),
      options_(options),
      thread_([this](const std::stop_token& stop) { grow(stop); }) {}

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
  {
    MutexLock lock(mutex_);
    stopped_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void ArenaGrowth::grow(const std::stop_token& stop) {
  std::string failure;
  try {
    // A first step of one piece, so that something is ready at once.
    std::uint64_t step_bytes = 1;
    for (;;) {
      KVFERRY_PAUSE_POINT("arena.growth");
      const Clock::time_point began = Clock::now();
      const std::uint64_t bytes =
          arena_.grow(gentle() || options_.pinning_bandwidth_limit > 0 ? 1 : step_bytes, stop) *
          arena_.chunk_bytes();
      if (bytes == 0) break;
      step_bytes = 2 * std::max(bytes, step_bytes);
      // What it waited for others was no work: members that paused for each other's pauses would
      // pause ever longer.
      pause(stop, bytes, Clock::now() - began - arena_.waited());
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  arena_.end_growth();
  // Here, because it reads all that the kernel has on the pages.
  const auto report =
      stop.stop_requested() ? std::optional<ArenaReport>() : std::optional(arena_.report());
  MutexLock lock(mutex_);
  failure_ = std::move(failure);
  last_report_ = report;
  ended_ = true;
}

void ArenaGrowth::pause(const std::stop_token& stop, std::uint64_t bytes,
                        std::chrono::nanoseconds took) {
  std::chrono::nanoseconds rest{0};
  if (gentle()) rest = kPausesPerStep * took;
  if (options_.pinning_bandwidth_limit > 0) {
    const std::chrono::duration<double> due(static_cast<double>(bytes) /
                                            static_cast<double>(options_.pinning_bandwidth_limit));
    rest = std::max(rest, std::chrono::duration_cast<std::chrono::nanoseconds>(due) - took);
  }
  const Clock::time_point end = Clock::now() + rest;
  MutexLock lock(mutex_);
  while (!stop.stop_requested() && Clock::now() < end) {
    stopped_.wait_for(mutex_, end - Clock::now());
  }
}

}  // namespace kvferry::cpu_tier
