// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_keeper.hpp"

#include "kvferry/base/error.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

/// An instance that needs memory gets it a few of these periods later.
constexpr auto kPeriod = std::chrono::milliseconds(100);
/// Once in this many periods it looks for dead instances, which asks the kernel about the lock of
/// every other instance.
constexpr std::uint32_t kSweepPeriods = 10;

}  // namespace

TierKeeper::TierKeeper(std::function<void()> tend, TierDirectory& directory, KeeperThread thread)
    : tend_(std::move(tend)), directory_(directory) {
  if (thread == KeeperThread::kNone) return;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

TierKeeper::TierKeeper(Tier& tier, TierDirectory& directory)
    : TierKeeper([&tier] { tier.tend(std::chrono::steady_clock::now()); }, directory) {}

void TierKeeper::keep() {
  tend_();
  if (num_periods_++ % kSweepPeriods != 0) return;
  try {
    static_cast<void>(directory_.sweep());
  } catch (const ResourceError&) {
    // The process has no descriptor left, so this waits for the next period.
  }
}

void TierKeeper::run(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  while (!stop.stop_requested()) {
    keep();
    std::unique_lock lock(mutex);
    wake.wait_for(lock, stop, kPeriod, [] { return false; });
  }
}

}  // namespace kvferry::cpu_tier
