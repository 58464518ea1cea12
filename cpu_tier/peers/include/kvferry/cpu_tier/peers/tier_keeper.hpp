// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <chrono>
#include <thread>

namespace kvferry::cpu_tier {

/// A thread for the work on a shared tier that cannot wait for this instance's next step, which
/// might never come: it cleans up after instances that are gone, and gives up chunks that other
/// instances should have. The destructor ends the thread. Both arguments outlive it.
class TierKeeper {
 public:
  TierKeeper(Tier& tier, TierDirectory& directory);

 private:
  void keep(const std::stop_token& stop);

  Tier& tier_;
  TierDirectory& directory_;
  std::jthread thread_;
};

}  // namespace kvferry::cpu_tier
