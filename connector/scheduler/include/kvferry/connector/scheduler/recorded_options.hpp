// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_options.hpp"

#include <string>

namespace kvferry::connector {

/// The options as the configuration of a recording (recorder::RecordedBy): one line for each, a
/// name and its values. Clock and recorder are no part of it.
[[nodiscard]] std::string config_text(const SchedulerOptions& options);
/// The inverse. Throws recorder::RecordingError for any other text, for that of a rank, or if the
/// engine's tier is shared: its peers and its keeper change it, and are not recorded.
[[nodiscard]] SchedulerOptions options_from(const std::string& config_text);

}  // namespace kvferry::connector
