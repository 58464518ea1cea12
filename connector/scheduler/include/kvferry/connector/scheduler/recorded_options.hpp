// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_options.hpp"

#include <string>

namespace kvferry::connector {

/// The options as the configuration of a recording (recorder::RecordedBy): one line for each, a
/// name and its values. Clock and recorder are no part of it.
[[nodiscard]] std::string config_text(const SchedulerOptions& options);
/// The inverse. If the tier was shared, `replayed_peers` is set, and is to be replaced by peers
/// that give the recorded answers. Throws recorder::RecordingError for any other text, and for that
/// of a rank.
[[nodiscard]] SchedulerOptions options_from(const std::string& config_text);

}  // namespace kvferry::connector
