// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvferry::gpu {

/// What a device that is lost may still do to memory.
enum class LostMemory : std::uint8_t {
  /// Work that was in flight may still read and write it: nothing that was submitted can be proven
  /// to have ended, and nothing ever will.
  kInDoubt,
  /// The driver or its context is gone: nothing runs any more, and every copy in flight failed.
  kQuiet
};

/// Why and when a device was lost to this process. For good; only a restart brings it back.
struct DeviceLoss {
  LostMemory memory = LostMemory::kInDoubt;
  /// One line: the call that noticed, and the driver's words.
  std::string why;
  std::chrono::system_clock::time_point since;
};

/// `since` as UTC, to the second: "2026-11-21 19:45:00 UTC".
[[nodiscard]] std::string utc_text(std::chrono::system_clock::time_point since);

}  // namespace kvferry::gpu
