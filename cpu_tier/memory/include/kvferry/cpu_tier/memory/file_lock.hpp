// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Locks of open files (open-file-description locks) on bytes that need not exist. One ends with
/// the last copy of its descriptor, whatever ended the process and in whatever pid namespace;
/// several open files of one process exclude each other. None of these waits.
namespace kvferry::cpu_tier {

/// Takes `count` bytes from `begin` on for this open file alone. 0, EAGAIN if another one holds any
/// of them, or another errno.
[[nodiscard]] int lock_bytes(int descriptor, std::uint64_t begin, std::uint64_t count);
/// The same, except that any number of open files can have them so.
[[nodiscard]] int share_bytes(int descriptor, std::uint64_t begin, std::uint64_t count);
/// This open file has none of them any more.
void unlock_bytes(int descriptor, std::uint64_t begin, std::uint64_t count) noexcept;
/// Whether another open file holds any of them, in whatever way. False if that cannot be told.
[[nodiscard]] bool is_locked(int descriptor, std::uint64_t begin, std::uint64_t count = 1);

}  // namespace kvferry::cpu_tier
