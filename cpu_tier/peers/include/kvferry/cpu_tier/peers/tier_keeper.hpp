// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <chrono>
#include <thread>

namespace kvferry::cpu_tier {

/// The thread that does for a shared tier what cannot wait for this instance's next step, which may
/// never come: it cleans up after instances that are gone, and gives up chunks that other
/// instances are to have. Ends with its destructor. Both outlive it.
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
