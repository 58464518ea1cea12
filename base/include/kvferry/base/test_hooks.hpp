// SPDX-License-Identifier: Apache-2.0
#pragma once

// Pause points and fault points: places in the product code where a test can hold a thread or make
// an operation fail. They are compiled in only with KVFERRY_TEST_HOOKS (debug and sanitizer
// presets); in release builds both macros are constants and cost nothing.
//
//   KVFERRY_PAUSE_POINT("store_pipeline.before_copy");
//   if (KVFERRY_FAULT_POINT("arena.map")) throw ResourceError(...);

#ifdef KVFERRY_TEST_HOOKS

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvferry::test_hooks {

/// Called by KVFERRY_PAUSE_POINT: runs the callback set for `name`, if any, on the calling thread.
void pause_point(const char* name);
/// Called by KVFERRY_FAULT_POINT: whether this pass must fail.
[[nodiscard]] bool fault_point(const char* name);

/// Runs `callback` each time a thread passes the pause point `name`; an empty one removes it.
void on_pause(const std::string& name, std::function<void()> callback);
/// From now on, fails the `nth` pass (from 1) of any fault point, once; 0 fails none.
void fail_nth(std::uint64_t nth);
/// From now on, fails the `nth` pass of the fault point `name`, once.
void fail_nth_of(const std::string& name, std::uint64_t nth);
/// Number of passes that failed since the last reset.
[[nodiscard]] std::uint64_t num_faults();
/// Number of passes of fault points since the last reset, and their names in the order of the first
/// pass.
[[nodiscard]] std::uint64_t num_fault_passages();
[[nodiscard]] std::vector<std::string> fault_names();
/// Removes all callbacks and faults and zeroes the counters.
void reset();

}  // namespace kvferry::test_hooks

#define KVFERRY_PAUSE_POINT(name) ::kvferry::test_hooks::pause_point(name)
#define KVFERRY_FAULT_POINT(name) ::kvferry::test_hooks::fault_point(name)

#else

#define KVFERRY_PAUSE_POINT(name) static_cast<void>(0)
#define KVFERRY_FAULT_POINT(name) false

#endif
