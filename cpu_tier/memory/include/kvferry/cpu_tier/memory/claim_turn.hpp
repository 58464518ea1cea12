// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/own_descriptor.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include <chrono>

namespace kvferry::cpu_tier {

/// Makes the processes of a machine claim memory one at a time. A turn lasts from before a
/// MemoryClaim is made until it is granted or withdrawn. Without turns, a claim that is about to be
/// refused would briefly count against another claim for which there is room.
///
/// The turn is a lock on the directory of the claims, for the life of this object. It ends with its
/// process. The wait for it is limited, so a stopped process does not block others. Claims are safe
/// even without a turn, because two claims that are made at the same time see each other. Throws as
/// OwnDescriptor. Used by one thread.
class ClaimTurn {
 public:
  /// A turn takes a few reads of /proc and of cgroups: milliseconds on a loaded machine.
  static constexpr std::chrono::milliseconds kPatience{1000};

  explicit ClaimTurn(const MachineRoot& machine = {},
                     std::chrono::milliseconds patience = kPatience);
  ClaimTurn(const ClaimTurn&) = delete;
  ClaimTurn& operator=(const ClaimTurn&) = delete;

  /// False: another process kept the lock for too long, or the directory cannot be locked.
  [[nodiscard]] bool is_held() const { return static_cast<bool>(directory_); }

 private:
  OwnDescriptor directory_;
};

}  // namespace kvferry::cpu_tier
