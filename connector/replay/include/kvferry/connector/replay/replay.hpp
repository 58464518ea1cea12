// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/recorder/recording.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace kvferry::connector {

/// Where the calls are made.
enum class ReplayWhere : std::uint8_t {
  kHere,    ///< A broken invariant that the recording does not have stops this process.
  kInChild  ///< In a forked child, which it stops: that is a difference. For any file of a user.
};

struct ReplayOptions {
  ReplayWhere where = ReplayWhere::kHere;
  /// After every call, what the parts hold is compared with the tier's counts, and after this many
  /// calls the whole tier is checked, in O(slots). 0: nothing is checked. Nor is it if an error
  /// ended the recording, which can have broken an invariant before the recorded process found it.
  std::uint32_t check_tier_every = 256;
};

/// The first event that a replay made differently.
struct Difference {
  /// The position in the recording of the event, or of the next one if the replay made one more.
  std::uint64_t position = 0;
  std::string call;      ///< The call in which it happened.
  std::string recorded;  ///< The event in the recording; "nothing" if the call was over.
  std::string replayed;  ///< The event that the replay made; "nothing" if it made none.
};

struct ReplayResult {
  std::uint64_t num_calls = 0;
  std::uint64_t num_events = 0;  ///< Events that were the same, calls and answers included.
  std::optional<Difference> difference;
  /// The error that the last call ended in, in both: what was thrown, or the broken invariant that
  /// stopped the recorded process.
  std::optional<std::string> last_error;
  /// SchedulerEngine::books() at the end; of a broken invariant, before the call that found it.
  std::string books;
};

/// Runs a new SchedulerEngine on the calls and answers of a recording, and compares each decision
/// with the recorded one. It ends at the first difference, or at the recording's end. Errors that
/// calls threw have to come again. The last call may have been cut; only what is recorded of it is
/// compared. If a broken invariant stopped the recorded process, the calls are made in a forked
/// child, which stops in the same way.
///
/// If the engine's tier was shared, the replay gives the recorded answers of its peers, and makes
/// the calls of its keeper.
///
/// Throws RecordingError if the recording lacks its beginning, or an event that it needs, and
/// ResourceError if the child cannot be made.
[[nodiscard]] ReplayResult replay(const recorder::Recording& recording,
                                  const ReplayOptions& options = {});

}  // namespace kvferry::connector
