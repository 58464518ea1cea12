// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvferry {

/// Called by the macros below: prints file, line, condition and message to stderr, then aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message) noexcept;

/// check_failed() calls it once at most, on the thread that found the broken invariant and before
/// the process stops, with place, condition and message. It must not fail.
using CheckWitness = void (*)(const std::string& what) noexcept;
/// Sets the witness of this process; null: none. Returns the one before. Thread-safe.
CheckWitness set_check_witness(CheckWitness witness);

}  // namespace kvferry

/// Stops the process when an invariant is broken. `message` (any std::string expression, evaluated
/// only on failure) carries the state that matters.
#define KVFERRY_CHECK(condition, message)                                 \
  do {                                                                    \
    if (!(condition)) [[unlikely]] {                                      \
      ::kvferry::check_failed(__FILE__, __LINE__, #condition, (message)); \
    }                                                                     \
  } while (false)

/// KVFERRY_CHECK in debug builds; nothing, and nothing evaluated, in release builds.
#ifdef NDEBUG
#define KVFERRY_DCHECK(condition, message) \
  do {                                     \
  } while (false)
#else
#define KVFERRY_DCHECK(condition, message) KVFERRY_CHECK(condition, message)
#endif
