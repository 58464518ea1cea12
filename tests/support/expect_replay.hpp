// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/replay/replay.hpp"
#include "kvferry/connector/scheduler/recorded_options.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/recorder/recorder.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

/// Tests whose scheduler side is recorded. Their programs depend on connector_replay.
namespace kvferry::connector {

/// A recorder for an engine with these options, which are told of it: into a new file, or into
/// memory if there is no path.
inline std::unique_ptr<recorder::Recorder> recorder_of(SchedulerOptions& options,
                                                       std::uint64_t ring_bytes = std::uint64_t{64}
                                                                                  << 20U,
                                                       const std::string& path = "") {
  const recorder::RecordedBy by{"test", kWireVersion, config_text(options)};
  auto recorder = path.empty() ? std::make_unique<recorder::Recorder>(ring_bytes, by)
                               : std::make_unique<recorder::Recorder>(path, ring_bytes, by);
  options.recorder = recorder.get();
  return recorder;
}

/// Everything that was recorded comes again.
inline void expect_replay(const recorder::Recorder& recorder) {
  const recorder::Recording recording = recorder::Recording::from_bytes(recorder.bytes());
  if (!recording.is_whole()) return;
  const ReplayResult result = replay(recording, {.check_tier_every = 16});
  if (!result.difference) return;
  ADD_FAILURE() << "a replay differs at " << result.difference->position << ", in call "
                << result.num_calls << ": " << result.difference->call
                << "\n  recorded: " << result.difference->recorded
                << "\n  replayed: " << result.difference->replayed;
}

}  // namespace kvferry::connector
