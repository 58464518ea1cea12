// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unistd.h>

namespace kvferry::recorder {

/// A path in /dev/shm for a recording, whose file goes with it.
struct RecordingPath {
  RecordingPath() { ::unlink(text.c_str()); }
  ~RecordingPath() { ::unlink(text.c_str()); }
  RecordingPath(const RecordingPath&) = delete;
  RecordingPath& operator=(const RecordingPath&) = delete;

  const std::string text = "/dev/shm/kvferry_recorder_test_" + std::to_string(::getpid());
};

}  // namespace kvferry::recorder
