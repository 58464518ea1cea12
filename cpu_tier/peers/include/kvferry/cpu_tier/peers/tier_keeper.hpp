// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <chrono>
#include <cstdint>
#include <thread>

namespace kvferry::cpu_tier {

enum class KeeperThread : std::uint8_t {
  kOwn,
  kNone  ///< For a simulation, which a thread would make different each time.
};

/// Does the work on a shared tier that cannot wait for this instance's next step, which might never
/// come: it cleans up after instances that are gone, and gives up chunks that other instances
/// should have. The destructor ends its thread. Both arguments outlive it.
class TierKeeper {
 public:
  TierKeeper(Tier& tier, TierDirectory& directory, KeeperThread thread = KeeperThread::kOwn);

  /// One period's work, if it has no thread. One thread at a time.
  void keep(std::chrono::steady_clock::time_point now);

 private:
  void run(const std::stop_token& stop);

  Tier& tier_;
  TierDirectory& directory_;
  std::uint32_t num_periods_ = 0;
  std::jthread thread_;
};

}  // namespace kvferry::cpu_tier
