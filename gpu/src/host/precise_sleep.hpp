// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace kvferry::gpu {

/// Returns at `when` or shortly after, never before. Sleeps until 50 us before and spins the rest:
/// the kernel wakes a sleeper about that much late, as much as a whole small copy takes.
void sleep_precisely_until(std::chrono::steady_clock::time_point when);

}  // namespace kvferry::gpu
