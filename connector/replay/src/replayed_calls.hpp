// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/recorder/event.hpp"
#include "kvferry/recorder/recorder.hpp"

#include "replayed_peers.hpp"
#include "replayed_world.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace kvferry::connector {

/// Makes recorded calls of a new scheduler side, in the world that they were made in.
class ReplayedCalls {
 public:
  /// `recorder` outlives this object, and is told all that the engine does.
  ReplayedCalls(SchedulerOptions options, recorder::Recorder& recorder);

  /// Makes the call of the first event. The others are what it read and decided. What it throws is
  /// recorded, and caught. Returns false if the recording ends before all of it. Throws
  /// RecordingError for an event that is none.
  bool run(std::span<const recorder::Event> call);
  /// Whether the request of a call, if it has one, has its recorded id.
  [[nodiscard]] bool has_id_of(const recorder::Event& call) const;
  [[nodiscard]] SchedulerEngine& engine() { return *engine_; }

 private:
  void take_answers(std::span<const recorder::Event> call);
  void take_time(const recorder::Event& event);
  void make(std::span<const recorder::Event> call);
  void hint(const recorder::Event& event);
  void allocate(const recorder::Event& event);
  void schedule(const recorder::Event& event);
  void fold(std::span<const recorder::Event> call);
  [[nodiscard]] static bool is_complete(std::span<const recorder::Event> call);

  std::deque<std::chrono::steady_clock::time_point> times_;
  std::chrono::steady_clock::time_point now_;
  std::chrono::steady_clock::time_point latest_;  ///< That was recorded.
  ReplayedPool pool_;
  PeerAnswers peer_answers_;
  ReplayedRequests requests_;
  std::size_t num_groups_;
  bool has_id_ = true;
  std::unique_ptr<SchedulerEngine> engine_;
};

}  // namespace kvferry::connector
