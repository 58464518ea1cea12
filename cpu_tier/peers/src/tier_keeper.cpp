// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_keeper.hpp"

#include "kvferry/base/error.hpp"

#include <condition_variable>
#include <mutex>

namespace kvferry::cpu_tier {
namespace {

/// An instance that needs memory gets it a few of these periods later.
constexpr auto kPeriod = std::chrono::milliseconds(100);
/// Once in this many periods it looks for dead instances, which asks the kernel about the lock of
/// every other instance.
constexpr int kSweepPeriods = 10;

}  // namespace

TierKeeper::TierKeeper(Tier& tier, TierDirectory& directory)
    : tier_(tier),
      directory_(directory),
      thread_([this](const std::stop_token& stop) { keep(stop); }) {}

void TierKeeper::keep(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  for (int period = 0; !stop.stop_requested(); ++period) {
    tier_.tend(std::chrono::steady_clock::now());
    if (period % kSweepPeriods == 0) {
      try {
        static_cast<void>(directory_.sweep());
      } catch (const ResourceError&) {
        // The process has no descriptor left, so this waits for the next period.
      }
    }
    std::unique_lock lock(mutex);
    wake.wait_for(lock, stop, kPeriod, [] { return false; });
  }
}

}  // namespace kvferry::cpu_tier
