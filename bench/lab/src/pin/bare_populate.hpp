// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::bench {

/// The most that a program can do to have its memory resident soon, as the reference for the arena:
/// `threads` threads, each of which asks for a part of `memory` (which begins where a huge page
/// does) by one MADV_POPULATE_WRITE, or where that is refused (before Linux 5.14) writes to every
/// page of it. Throws std::system_error if a thread cannot be had.
void bare_populate(std::span<std::byte> memory, std::uint32_t threads);

}  // namespace kvferry::bench
