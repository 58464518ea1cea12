// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/recorder/recording.hpp"

#include <span>
#include <string>

namespace kvferry::recorder {

/// Writes the events into a new file of the same format, with mode 0600. A reader finds those that
/// begin in the newest ring_bytes, less a segment at most. Copying the file of a living engine byte
/// by byte would mix events of different times. Throws ConfigError for a path that is in use, and
/// ResourceError if the file cannot be written; then there is none.
void save(const Recording& recording, const std::string& path);
/// Writes several recordings into one file, one behind the other (RecordingFile's parts).
void save(std::span<const Recording* const> recordings, const std::string& path);

}  // namespace kvferry::recorder
