// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvferry::gpu {

/// What a lost device can still do to memory.
enum class LostMemory : std::uint8_t {
  /// Work that was in flight could still read and write it. It can never be proven that any
  /// submitted work has ended.
  kInDoubt,
  /// The driver or its context is gone: no work runs any more, and every copy in flight has failed.
  kQuiet
};

/// Why and when this process lost a device. The loss is permanent; only a restart of the process
/// helps.
struct DeviceLoss {
  LostMemory memory = LostMemory::kInDoubt;
  /// One line: the call that detected it, and the driver's message.
  std::string why;
  std::chrono::system_clock::time_point since;
};

/// `since` as UTC, to the second: "2026-11-21 19:45:00 UTC".
[[nodiscard]] std::string utc_text(std::chrono::system_clock::time_point since);

}  // namespace kvferry::gpu
