// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/peers.hpp"
#include "kvferry/recorder/recorder.hpp"

#include <memory>

namespace kvferry::connector {

/// Records what a shared tier learns from its peers (recorder::PeerAnswer), so that a replay can
/// give the same answers. What follows from earlier answers and from the tier's calls is not
/// recorded. Called under the tier's lock, within the calls that are recorded; see
/// SchedulerEngine::Parts::in_turn().
class PeerJournal {
 public:
  /// `to` may be null; otherwise it outlives this object.
  explicit PeerJournal(recorder::Recorder* to) : to_(to) {}

  /// The peers as the tier sees them. This object outlives the result.
  [[nodiscard]] std::unique_ptr<cpu_tier::Peers> watched(std::unique_ptr<cpu_tier::Peers> peers);
  /// The engine ends: what its parts give back is no call.
  void stop() { to_ = nullptr; }
  /// Null after stop().
  [[nodiscard]] recorder::Recorder* to() const { return to_; }

 private:
  recorder::Recorder* to_;
};

}  // namespace kvferry::connector
