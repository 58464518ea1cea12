// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_keeper.hpp"

#include "kvferry/base/error.hpp"

#include <condition_variable>
#include <mutex>

namespace kvferry::cpu_tier {
namespace {

/// An instance that needs memory has it a few of these later.
constexpr auto kPeriod = std::chrono::milliseconds(100);
/// In each so many periods instances that are gone are looked for, which asks the kernel about
/// every other one's lock.
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
        // The process has no descriptor to spare: at the next time, then.
      }
    }
    std::unique_lock lock(mutex);
    wake.wait_for(lock, stop, kPeriod, [] { return false; });
  }
}

}  // namespace kvferry::cpu_tier
