// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <cstdint>
#include <functional>
#include <thread>

namespace kvferry::cpu_tier {

enum class KeeperThread : std::uint8_t {
  kOwn,
  kNone  ///< For a simulation, which a thread would make different each time.
};

/// Does the work on a shared tier that cannot wait for this instance's next step, which might never
/// come: it cleans up after instances that are gone, and gives up chunks that other instances
/// should have. The destructor ends its thread.
class TierKeeper {
 public:
  /// `tend`: calls Tier::tend(). It is called on the keeper's thread, and can be called until this
  /// object ends, which the directory outlives.
  TierKeeper(std::function<void()> tend, TierDirectory& directory,
             KeeperThread thread = KeeperThread::kOwn);
  /// The same for a tier that its users call on any thread. It outlives this object, too.
  TierKeeper(Tier& tier, TierDirectory& directory);

  /// One period's work, if it has no thread. One thread at a time.
  void keep();

 private:
  void run(const std::stop_token& stop);

  const std::function<void()> tend_;
  TierDirectory& directory_;
  std::uint32_t num_periods_ = 0;
  std::jthread thread_;
};

}  // namespace kvferry::cpu_tier
