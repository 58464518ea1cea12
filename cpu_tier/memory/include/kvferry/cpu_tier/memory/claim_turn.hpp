// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/own_descriptor.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include <chrono>

namespace kvferry::cpu_tier {

/// Processes of the machine claim memory one at a time: from before a MemoryClaim is made until it
/// stands or is withdrawn. Without it, one that is about to be refused would count, for that
/// moment, against another for which there is room.
///
/// A lock on the directory of the claims, for as long as this lives. It ends with its process, and
/// is waited for that long at most: a stopped process holds nobody up, and without a turn claims
/// are safe all the same, as two that are made at once see each other. Throws as OwnDescriptor.
/// Used by one thread.
class ClaimTurn {
 public:
  /// A turn takes some reads of /proc and of cgroups: milliseconds on a machine that is loaded.
  static constexpr std::chrono::milliseconds kPatience{1000};

  explicit ClaimTurn(const MachineRoot& machine = {},
                     std::chrono::milliseconds patience = kPatience);
  ClaimTurn(const ClaimTurn&) = delete;
  ClaimTurn& operator=(const ClaimTurn&) = delete;

  /// False: somebody kept it for too long, or the directory cannot be locked.
  [[nodiscard]] bool is_held() const { return static_cast<bool>(directory_); }

 private:
  OwnDescriptor directory_;
};

}  // namespace kvferry::cpu_tier
